"""A small ViT, built from its configuration and trained sparse by Hugging Face's Trainer: one callback.

Run: python examples/transformers_vit.py
"""

import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import rewire
from rewire.integrations.transformers import Rewire


class Digits(Dataset[dict[str, Tensor]]):
    """8x8 images as the model wants them."""

    def __init__(self, first: int, last: int) -> None:
        images, labels = load_digits(return_X_y=True)
        self.x = torch.tensor(images[first:last], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.y = torch.tensor(labels[first:last])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[index], "labels": self.y[index]}


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    images: dict[str, Any] = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
    model = ViTForImageClassification(ViTConfig(**sizes, **images, num_attention_heads=4))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=8,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            report_to="none",
            use_cpu=True,
        )
        sparse = Rewire(rewire.ggr(density=0.25, every=24, until=96))
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Digits(0, 1500),
            callbacks=[sparse],
            compute_metrics=accuracy,
        )
        trainer.train()
        print(f"accuracy {trainer.evaluate(Digits(1500, 1797))['eval_accuracy']:.1%}")
    print(sparse.rewirer)


if __name__ == "__main__":
    main()
