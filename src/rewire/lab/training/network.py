"""The network of a run, from its folder or its checkpoint. No data set is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import mask_of, written_out
from rewire.io.files import first_line
from rewire.lab.data.augment import steps_per_epoch
from rewire.lab.data.datasets import DATASETS
from rewire.lab.models import build
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.model.state_names import MASK, POSITIONS, masks_in


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

    def built(self) -> nn.Module:
        """The network of the run as it is before any training: of full size, without masks."""
        return _build(self.run)

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
    try:
        state = checkpoints.load(file)
    except ValueError as error:
        reason = first_line(error.__cause__ or error)
        raise ValueError(f"{file} is not a checkpoint of a run ({reason}): give the folder of a run") from error
    if not isinstance(state, dict) or not {"run", "model", "rewirer", "metrics", "initial"} <= state.keys():
        raise ValueError(f"{file} is not a checkpoint of a run: it has no run, model, rewirer, metrics and initial")
    try:
        run = Run.from_dict(state["run"])
        model = _build(run)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{file} does not name a run: {first_line(error)}") from error
    try:
        tensors = _written_out(state["model"], model)
        for name in masks_in(tensors):
            module = model.get_submodule(name.rpartition(".")[0])
            module.register_buffer(MASK, torch.zeros_like(tensors[name], dtype=torch.bool))
        model.load_state_dict(tensors)
    except (RuntimeError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} does not fit {run.label}: {str(error).splitlines()[-1].strip()}") from error
    return Trained(run, model.eval(), state)


def _build(run: Run) -> nn.Module:
    source = DATASETS[run.data]
    return build(run.model, classes=source.classes, image=source.shape, width=run.width, seed=run.seed)


def _written_out(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A state whose weights are dense with masks beside them, also if it came from the packed store."""
    state, shapes = dict(state), {name: one.shape for name, one in model.named_parameters()}
    for name in [name for name in state if name.endswith(POSITIONS)]:
        weight, positions = name.removesuffix(POSITIONS) + "weight", state.pop(name)
        state[weight] = written_out(state[weight], positions, shapes[weight])
        state[name.removesuffix(POSITIONS) + MASK] = mask_of(positions, shapes[weight])
    return state
