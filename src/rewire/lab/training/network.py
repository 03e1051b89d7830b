"""The network of a run, from its folder or its checkpoint. No data set is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import mask_of, written_out
from rewire.io.files import first_line
from rewire.lab.data.augment import steps_per_epoch
from rewire.lab.models.build import build
from rewire.lab.references import MissingCodeError
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.model.state_names import mask_name, masks_in, packed_in, positions_name


@dataclass(frozen=True)
class Trained:
    """The network of a checkpoint, and what else the checkpoint holds."""

    run: Run
    model: nn.Module
    state: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """What the network knows of its data: classes, image, number of training images, mean, std and scale."""
        return about_data(self.run, self.state)

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        channels, height, width = self.data["image"]
        return channels, height, width

    @property
    def example(self) -> Tensor:
        """Two random inputs of the right shape."""
        return torch.randn(2, *self.image, generator=torch.Generator().manual_seed(0))

    def built(self) -> nn.Module:
        """The network of the run before any training: of full size, without masks."""
        return _build(self.run, self.data)

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch."""
        return steps_per_epoch(self.data["train"], self.run.batch_size)


def about_data(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says about its data; checkpoints of earlier versions are all of data sets of the library."""
    if "data" in state:
        return dict(state["data"])
    source = run.entry("data")
    images = min(source.train, run.limit or source.train)
    about = {"classes": source.classes, "image": list(source.shape), "train": images}
    return about | {"mean": list(source.mean), "std": list(source.std), "scale": 255}


def read_network(path: Path) -> Trained:
    """The network of a run in evaluation mode, with its masks."""
    file = path / "checkpoint.safetensors" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: give the folder of a run (runs/train/NAME) or its checkpoint")
    try:
        state = checkpoints.load(file)
    except ValueError as error:
        reason = first_line(error.__cause__ or error)
        raise ValueError(f"{file} is not a checkpoint of a run ({reason}): give the folder of a run") from error
    if not isinstance(state, dict) or not {"run", "model", "rewirer", "metrics", "initial"} <= state.keys():
        raise ValueError(f"{file} is not a checkpoint of a run: it has no run, model, rewirer, metrics and initial")
    try:
        run = Run.from_dict(state["run"])
        model = _build(run, about_data(run, state))
    except MissingCodeError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{file} does not name a run: {first_line(error)}") from error
    try:
        tensors = _written_out(state["model"], model)
        for name in masks_in(tensors):
            owner, _, parameter = name.rpartition(".")
            module = model.get_submodule(owner)
            module.register_buffer(mask_name(parameter), torch.zeros_like(tensors[name], dtype=torch.bool))
        model.load_state_dict(tensors)
    except (RuntimeError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} does not fit {run.label}: {str(error).splitlines()[-1].strip()}") from error
    return Trained(run, model.eval(), state)


def _build(run: Run, data: dict[str, Any]) -> nn.Module:
    channels, height, width = data["image"]
    return build(
        run.model,
        classes=data["classes"],
        image=(channels, height, width),
        width=run.width,
        seed=run.seed,
        code=run.code_of("model"),
    )


def _written_out(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state with dense weights and masks, also if it came from the packed store."""
    state, shapes = dict(state), {name: parameter.shape for name, parameter in model.named_parameters()}
    for weight in packed_in(state):
        positions = state.pop(positions_name(weight))
        state[weight] = written_out(state[weight], positions, shapes[weight])
        state[mask_name(weight)] = mask_of(positions, shapes[weight])
    return state
