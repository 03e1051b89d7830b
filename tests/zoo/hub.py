"""Public architectures as ``transformers`` builds them, in tiny sizes: nothing is downloaded."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: how it is built, and the arguments of one forward pass."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    options: dict[str, Any] = field(default_factory=dict)  # of sparsify


class FirstOutput(nn.Module):
    """A model of transformers as a function of tensors to one tensor: its first output."""

    def __init__(self, model: nn.Module, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.arguments = model, arguments

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.arguments, tensors, strict=True))
        return self.model(**given, return_dict=False, **self._options())[0]

    def _options(self) -> dict[str, Any]:
        return {"use_cache": False} if getattr(self.model.config, "use_cache", False) else {}


WORDS, LENGTH = 40, 6


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def words() -> torch.Tensor:
    """Two sentences."""
    return torch.randint(3, WORDS, (2, LENGTH), generator=_generator())


def noise(*shape: int) -> torch.Tensor:
    """Two images, sounds or spectrograms of this shape."""
    return torch.randn(2, *shape, generator=_generator(), dtype=torch.float64)


def text() -> tuple[torch.Tensor, ...]:
    """The inputs of a model that reads words."""
    return (words(),)


def image(size: int = 32) -> tuple[torch.Tensor, ...]:
    """The inputs of a model that sees images."""
    return (noise(3, size, size),)


INPUTS: dict[str, Callable[..., torch.Tensor]] = {
    "words": words,
    "image": lambda size: noise(3, int(size), int(size)),
    "sound": lambda: noise(400),
    "spectrogram": lambda: noise(16, 24),
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout": 0.0}


def entries() -> list[Entry]:
    """Every model of ``hub.toml``."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [_entry(name, row, table["presets"].get(row.get("preset"), {})) for name, row in table["models"].items()]


def _entry(name: str, row: dict[str, Any], preset: dict[str, Any]) -> Entry:
    def build() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, row["config"])(**(NO_DROPOUT | preset | row.get("sizes", {})))
        kind = type(name, (FirstOutput,), {})  # so that messages name the model
        return kind(getattr(transformers, name)(config), tuple(row["arguments"])).double()

    def inputs() -> tuple[torch.Tensor, ...]:
        kinds = [kind.split() for kind in row["arguments"].values()]
        return tuple(INPUTS[kind](*size) for kind, *size in kinds)

    return Entry(name, build, inputs)
