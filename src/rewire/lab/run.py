"""``Run``: a frozen record that names one training completely; its id is a hash of its content."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from rewire.choose import choose, nearest
from rewire.lab.data import DATASETS
from rewire.lab.models import MODELS
from rewire.methods import METHODS
from rewire.parts.grow import GROWTHS
from rewire.parts.start import STARTS

DENSE = "dense"
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: data, network, method and recipe. Two equal runs give the same numbers on the same machine."""

    data: str = "digits"
    model: str = "vgg-small"
    width: float = 1.0
    method: str = "ggr"
    sparsity: float = 0.97
    start: str = "erk"
    growth: str = "mix"  # of ggr
    scope: str = "layer"  # of what is dropped: "layer", or "network" for the ablation
    fraction: float | None = None  # of the weights moved at first; None: the method's own
    every: int | None = None  # optimizer steps between rewirings; None: once an epoch
    until: float = 0.5  # of the training after which the topology is fixed
    init: str | None = None
    store: str = "masked"
    epochs: int = 30
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: int = 1  # epochs
    precision: str = "float32"
    limit: int | None = None  # images of each split, for experiments on a part of the data
    seed: int = 0

    def __post_init__(self) -> None:
        choose("data set", self.data, DATASETS)
        choose("network", self.model, MODELS)
        choose("method", self.method, METHODS | {DENSE: None})
        choose("start", self.start, STARTS)
        choose("growth", self.growth, GROWTHS)
        choose("scope", self.scope, dict.fromkeys(("layer", "network")))
        choose("store", self.store, dict.fromkeys(("masked",)))
        choose("precision", self.precision, dict.fromkeys(PRECISIONS))
        choose("init", self.init or "none", dict.fromkeys(("none", "fan_in")))
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is the share of weights that do not exist, in [0, 1), not {self.sparsity}")
        for name in ("epochs", "batch_size", "lr", "width"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)!r}")

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for the content."""
        canonical = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """A few words for people."""
        if self.method == DENSE:
            return f"{self.model} {self.data} dense seed {self.seed}"
        growth = f"-{self.growth}" if self.method == "ggr" and self.growth != "mix" else ""
        return f"{self.model} {self.data} {self.method}{growth} {self.sparsity:.0%} {self.start} seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Run":
        """The run that ``to_dict`` was made of; fields that are not known are refused with the nearest name."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"a run has no field {name!r}.{nearest(name, known)}")
        return cls(**values)
