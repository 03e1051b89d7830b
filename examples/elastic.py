"""Train a sparse network on several ranks that may die: whoever is killed, training goes on from the last checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or restarted ranks may look for the addresses of the dead ones
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/elastic.py runs/elastic

Kill one of the processes while it runs: torchrun starts all of them again, they load the newest whole checkpoint, and
the end is the same, bit by bit. Run the command again with more ``--steps``, or on another number of ranks, and it goes
on from there.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import rewire
import rewire.distributed


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A rank's share of a batch that depends on the step alone, so that a resumed run sees the same data."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(64, 32, generator=generator)
    y = (x[:, :8].sum(1) > 0).long() + 2 * (x[:, 8:16].sum(1) > 0).long()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return x[mine].to(device), y[mine].to(device)


def train(folder: Path, steps: int, save_every: int = 5, on_step: Callable[[int], None] | None = None) -> nn.Module:
    """Go on from the newest checkpoint in ``folder``, or begin; ``on_step`` is called after each step."""
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.1, every=4, until=200))
    loaded = rewire.distributed.load_latest(folder, model=model, optimizer=optimizer, rewirer=rewirer)
    if loaded is not None and dist.get_rank() == 0:
        print(f"goes on from step {loaded.step}", flush=True)
    for step in range(loaded.step if loaded else 0, steps):
        x, y = batch(step, device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % save_every == 0:
            rewire.distributed.save(folder, step + 1, model=model, optimizer=optimizer, rewirer=rewirer)
        if on_step is not None:
            on_step(step + 1)
    if dist.get_rank() == 0:
        print(rewirer, flush=True)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    dist.init_process_group()
    train(arguments.folder, arguments.steps)
    dist.barrier()  # a rank that leaves early may abort the others
    dist.destroy_process_group()
