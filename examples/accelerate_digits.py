"""A plain loop under Accelerate, sparse with GGR. Run: python examples/accelerate_digits.py, or accelerate launch it.

``sparsify`` comes after ``prepare`` or before it; ``register_for_checkpointing`` puts the rewirer into ``save_state``.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rewire


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.1, every=24, until=180))
    accelerator.register_for_checkpointing(rewirer)
    for _ in range(15):
        for images, labels in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(images), labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    model.eval()
    accelerator.print(f"accuracy {(model(x[1500:]).argmax(1) == y[1500:]).float().mean():.1%}")
    accelerator.print(rewirer)


if __name__ == "__main__":
    main()
