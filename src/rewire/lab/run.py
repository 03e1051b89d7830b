"""``Run``: a frozen record that names one training completely; its id is a hash of its content."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from rewire._lookup import choose, nearest

DENSE = "dense"
PRECISIONS = ("float32", "float64", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Data, network, method and recipe. Two equal runs give the same numbers on the same machine."""

    data: str = "digits"
    """The data set: digits, cifar100, tiny-imagenet or fashion-mnist."""
    model: str = "vgg-small"
    """The network: mobilenet-v2, resnet-18, vgg16, vgg-small or mlp."""
    width: float = 1.0
    """Multiplier of the network's channels."""
    method: str = "ggr"
    """How it is rewired: dense, static, set, rigl, set_rigl, dsr, deepr, snfs, ggr, gmp or granet."""
    sparsity: float = 0.97
    """The share of weights that do not exist."""
    start: str = "erk"
    """Where weights are at first: erk, uniform, er, or one of these with 'connected-' before it."""
    growth: str = "mix"
    """How ggr grows: mix, gradient or random."""
    scope: str = "layer"
    """Where the lowest weights are dropped: the same share of each layer, or of the whole network."""
    fraction: float | None = None
    """The share of the active weights that moves at first; the method's own by default."""
    every: int | None = None
    """Optimizer steps between rewirings; once an epoch by default."""
    until: float = 0.5
    """The share of the training after which the topology is fixed."""
    init: str | None = None
    """fan_in: draw the first weights for the connections that exist."""
    store: str = "masked"
    """Who holds the weights."""
    epochs: int = 30
    """Passes over the data."""
    batch_size: int = 128
    """Images per optimizer step."""
    lr: float = 0.1
    """Learning rate; it falls to a fifth at 30, 60 and 80 % of the training."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """Of SGD."""
    warmup: int = 1
    """Epochs in which the learning rate rises from zero."""
    precision: str = "float32"
    """float32, float64, or bfloat16 by autocast."""
    limit: int | None = None
    """Use only so many images of each split."""
    seed: int = 0
    """Decides the first weights, the topology, the order of the data and the augmentation."""

    def __post_init__(self) -> None:
        # Imported here, because they need torch and the command line wants to show its help at once.
        from rewire.lab.data.datasets import DATASETS
        from rewire.lab.models import MODELS
        from rewire.methods import METHODS
        from rewire.parts.grow import GROWTHS
        from rewire.parts.start import STARTS
        from rewire.stores.packed import PackedStore

        choose("data set", self.data, DATASETS)
        choose("network", self.model, MODELS)
        choose("method", self.method, METHODS | {DENSE: None})
        choose("start", self.start, STARTS)
        choose("growth", self.growth, GROWTHS)
        choose("scope", self.scope, dict.fromkeys(("layer", "network")))
        choose("store", self.store, dict.fromkeys(("masked", "packed")))
        choose("precision", self.precision, dict.fromkeys(PRECISIONS))
        choose("init", self.init or "none", dict.fromkeys(("none", "fan_in")))
        if self.store == "packed" and self.method != DENSE:
            missing = METHODS[self.method](density=0.5, every=1, until=2).signals - PackedStore.supplies
            if missing:
                reads = ", ".join(signal.value for signal in missing)
                raise ValueError(f"{self.method} reads {reads}, which the packed store cannot supply: use store masked")
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is the share of weights that do not exist, in [0, 1), not {self.sparsity}")
        for name in ("epochs", "batch_size", "lr", "width", "every", "limit"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)!r}")
        for name in ("warmup", "momentum", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, and is {getattr(self, name)!r}")
        for name in ("until", "fraction"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, in [0, 1], not {getattr(self, name)!r}")
        if self.scope == "network" and self.method in ("dsr", "deepr", "static", DENSE):
            raise ValueError(f"scope 'network' is about dropping the lowest weights, which {self.method} does not do")

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

    def arguments(self) -> list[str]:
        """The run as arguments of ``rewire train``: those that differ from the defaults, and the seed."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or field.name == "seed":
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return words

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
