"""What each of two processes does: train with a trainer's own DDP and write down the topology it ends with.

``python two_processes.py FOLDER`` does so with every trainer. Its ranks find the environment that torchrun gives them,
and are forked from one process that has imported torch and the trainers, which takes longer than all the trainings.
"""

import multiprocessing
import os
import socket
import sys
from pathlib import Path

import lightning.pytorch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

import rewire
import rewire.integrations.lightning
import rewire.integrations.transformers

METHOD = rewire.ggr(density=0.2, every=2, until=20)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).double()


def data():
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, x[:, :4].argmax(1))


def with_lightning(folder):
    class Module(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    callback = rewire.integrations.lightning.Rewire(METHOD)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    two_ranks = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
    trainer = lightning.pytorch.Trainer(max_epochs=2, callbacks=[callback], **two_ranks, **quiet)
    trainer.fit(Module(), DataLoader(data(), batch_size=4))
    return callback.rewirer, trainer.global_rank


def with_transformers(folder):
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
    callback = rewire.integrations.transformers.Rewire(METHOD)
    Trainer(model=Model(), args=arguments, train_dataset=examples, callbacks=[callback]).train()
    return callback.rewirer, torch.distributed.get_rank()


TRAINERS = {"lightning": with_lightning, "transformers": with_transformers}


def rank_of(trainer, rank, port, folder):
    """One rank of a training."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": trainer}
    os.environ |= {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    rewirer, seen_rank = TRAINERS[trainer](str(folder))
    assert seen_rank == rank
    assert torch.distributed.get_world_size() == 2
    masks = [layer.mask for layer in rewirer.layers]
    torch.save({"masks": masks, "step": rewirer.step, "rewirings": len(rewirer.history)}, folder / f"rank-{rank}.pt")
    torch.distributed.barrier()  # a rank that leaves early may abort the other
    torch.distributed.destroy_process_group()


def train(trainer, folder):
    """Train on both ranks. Returns their exit codes."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_of, args=(trainer, rank, port, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return [rank.exitcode for rank in ranks]


if __name__ == "__main__":
    failed = {trainer: codes for trainer in TRAINERS if any(codes := train(trainer, Path(sys.argv[1]) / trainer))}
    sys.exit(f"exit codes of the ranks: {failed}" if failed else 0)
