"""A LightningModule trained sparse with GGR: one callback. Run this file: it takes seconds."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rewire
from rewire.integrations.lightning import Rewire


class Classifier(LightningModule):
    """A perceptron for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def test_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def main() -> None:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    sparse = Rewire(rewire.ggr(density=0.1, every=24, until=180))
    trainer = Trainer(max_epochs=15, accelerator="cpu", callbacks=[sparse], logger=False, enable_checkpointing=False)
    trainer.fit(model := Classifier(), DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=64, shuffle=True))
    trainer.test(model, DataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=297))
    print(sparse.rewirer)


if __name__ == "__main__":
    main()
