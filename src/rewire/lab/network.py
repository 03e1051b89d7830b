"""The network of a run, from its folder or its checkpoint. No data set is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewire.lab import checkpoints
from rewire.lab.augment import steps_per_epoch
from rewire.lab.data import DATASETS
from rewire.lab.models import build
from rewire.lab.run import Run

MASK = "weight_mask"


@dataclass(frozen=True)
class Trained:
    """A network as its checkpoint holds it, and what the checkpoint tells about its training."""

    run: Run
    model: nn.Module
    state: dict[str, Any]

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        return DATASETS[self.run.data].shape

    @property
    def example(self) -> Tensor:
        """Two inputs of the right shape."""
        return torch.randn(2, *self.image, generator=torch.Generator().manual_seed(0))

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch."""
        images = DATASETS[self.run.data].train
        return steps_per_epoch(min(images, self.run.limit or images), self.run.batch_size)


def read_network(path: Path) -> Trained:
    """In evaluation mode, masks included."""
    file = path / "checkpoint.safetensors" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: give the folder of a run (runs/train/ID) or its checkpoint")
    state = checkpoints.load(file)
    if not isinstance(state, dict) or not {"run", "model", "metrics", "initial"} <= state.keys():
        raise ValueError(f"{file} is not a checkpoint of a run: it has no run, model, metrics and initial counts")
    run = Run.from_dict(state["run"])
    source = DATASETS[run.data]
    model = build(run.model, classes=source.classes, image=source.shape, width=run.width, seed=run.seed)
    modules = dict(model.named_modules())
    for name, tensor in state["model"].items():
        path_of, _, attribute = name.rpartition(".")
        if attribute == MASK and path_of in modules:
            modules[path_of].register_buffer(MASK, torch.zeros_like(tensor, dtype=torch.bool))
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise ValueError(f"{file} does not fit {run.label}: {str(error).splitlines()[-1].strip()}") from error
    return Trained(run, model.eval(), state)
