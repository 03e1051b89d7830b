"""What each of two processes does: train with a trainer's own DDP and write down the topology it ends with."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rewire

METHOD = rewire.ggr(density=0.2, every=2, until=20)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).double()


def data():
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, x[:, :4].argmax(1))


def with_lightning(folder):
    from lightning.pytorch import LightningModule, Trainer

    from rewire.integrations.lightning import Rewire

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    callback = Rewire(METHOD)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback], **quiet)
    trainer.fit(Module(), DataLoader(data(), batch_size=4))
    return callback.rewirer, trainer.global_rank


def with_transformers(folder):
    from transformers import Trainer, TrainingArguments

    from rewire.integrations.transformers import Rewire

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels=None):
            out = self.net(x)
            return {"loss": F.cross_entropy(out, labels), "logits": out}

    examples = [{"x": x, "labels": y} for x, y in data()]
    settings = {"max_steps": 8, "per_device_train_batch_size": 4, "save_steps": 8, "learning_rate": 1e-2}
    arguments = TrainingArguments(folder, use_cpu=True, report_to="none", disable_tqdm=True, **settings)
    callback = Rewire(METHOD)
    Trainer(model=Model(), args=arguments, train_dataset=examples, callbacks=[callback]).train()
    return callback.rewirer, torch.distributed.get_rank()


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    rewirer, rank = {"lightning": with_lightning, "transformers": with_transformers}[sys.argv[1]](str(folder))
    masks = [layer.mask for layer in rewirer.layers]
    torch.save({"masks": masks, "step": rewirer.step, "rewirings": len(rewirer.history)}, folder / f"rank-{rank}.pt")
