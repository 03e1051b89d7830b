"""``Run``: a frozen record that names one training completely; its id is a hash of its content."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rewire._lookup import choose, nearest
from rewire.lab.references import Code, file_label, is_reference

if TYPE_CHECKING:
    from rewire.core.named import NamedMethod

DENSE = "dense"  # in place of a method: an ordinary training of the dense network
ROLES = ("data", "model", "method")  # fields whose names are looked up, and may name code of one's own
PRECISIONS = ("float32", "float64", "bfloat16")
OPTIMIZERS, DECAYS = ("sgd", "adamw"), ("steps", "cosine")
# Fields that are newer than the ids of runs on disk: at their defaults they are not part of a run's content.
_LATER = {"optimizer": "sgd", "decay": "steps", "evaluate_every": 1, "record_losses": False}
_SCOPES, _INITS = ("layer", "network"), ("none", "fan_in")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Data, network, method and recipe. Two equal runs give the same numbers on the same machine."""

    data: str = "digits"
    """The data set: a name that `rewire data list` shows, or a function (file.py:function, package.module:function)."""
    model: str = "vgg-small"
    """The network: a name that `rewire models` shows, or a function (file.py:function, package.module:function)."""
    width: float = 1.0
    """Multiplies the network's channels."""
    method: str = "ggr"
    """How the network is rewired: a name that `rewire methods` shows, dense, or a function (file.py:function)."""
    sparsity: float = 0.97
    """The share of weights that do not exist."""
    start: str = "erk"
    """How the first weights are distributed: erk, uniform, er, or one of these after 'connected-'."""
    growth: str = "mix"
    """Where GGR grows weights: mix, gradient or random."""
    scope: str = "layer"
    """Where the lowest weights are dropped: layer (the same share of each layer) or network (wherever they are)."""
    fraction: float | None = None
    """The share of the active weights that moves at first; by default the method's own."""
    every: int | None = None
    """Optimizer steps between rewirings; by default one epoch, or the method's own."""
    until: float = 0.5
    """The share of the training after which the topology is fixed."""
    init: str | None = None
    """fan_in draws the first weights for the number of inputs that each neuron has."""
    store: str = "masked"
    """How weights are stored: masked (dense tensor and mask) or packed (non-zeros only)."""
    epochs: int = 30
    """Passes over the data."""
    batch_size: int = 128
    """Images per optimizer step."""
    lr: float = 0.1
    """Learning rate, after the warm-up."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of the optimizer."""
    warmup: int = 1
    """Epochs in which the learning rate rises from zero."""
    precision: str = "float32"
    """Number format: float32, float64, or bfloat16 by autocast."""
    optimizer: str = "sgd"
    """The optimizer: sgd or adamw."""
    decay: str = "steps"
    """How the learning rate falls: steps (to a fifth at 30, 60 and 80 % of the training) or cosine (to zero)."""
    evaluate_every: int = 1
    """Epochs between evaluations on the test set; the last epoch is always evaluated."""
    record_losses: bool = False
    """Also record the training loss of every optimizer step."""
    limit: int | None = None
    """Use at most this many images of each split."""
    seed: int = 0
    """Determines the first weights, the topology, the order of the data and the augmentation."""
    code: Annotated[tuple[Code, ...], tyro.conf.Fixed, tyro.conf.Suppress] = ()
    """The code of one's own that the run uses. It is found by the names, and never given."""

    def __post_init__(self) -> None:
        # Imported here, because it imports torch and the command line shows its help without it.
        from rewire.lab.names import identify

        used = []
        for role in ROLES:
            if role == "method" and self.is_dense:
                continue
            name, code = identify(role, getattr(self, role), self.code_of(role))
            object.__setattr__(self, role, name)
            used += [code] if code is not None else []
        object.__setattr__(self, "code", tuple(used))
        self._check_names()
        self._check_numbers()
        self._refuse_ignored()

    @property
    def is_dense(self) -> bool:
        """Whether the network is trained without any sparsity."""
        return self.method == DENSE

    def code_of(self, role: str) -> Code | None:
        """The code of one's own behind a field; nothing if the library brings it."""
        return next((code for code in self.code if code.role == role), None)

    def entry(self, role: str) -> Any:
        """What is registered under the name in a field; refuses code that is missing or has changed."""
        from rewire.lab.names import REGISTRIES

        return REGISTRIES[role].find(getattr(self, role), self.code_of(role))

    def _check_names(self) -> None:
        from rewire.attach import STORES
        from rewire.parts.grow import GROWTHS
        from rewire.parts.start import STARTS

        choose("start", self.start, STARTS)
        choose("growth", self.growth, GROWTHS)
        choose("scope", self.scope, dict.fromkeys(_SCOPES))
        choose("precision", self.precision, dict.fromkeys(PRECISIONS))
        choose("optimizer", self.optimizer, dict.fromkeys(OPTIMIZERS))
        choose("decay", self.decay, dict.fromkeys(DECAYS))
        choose("init", self.init or "none", dict.fromkeys(_INITS))
        store = choose("store", self.store, STORES)
        missing = frozenset() if self.is_dense else self.entry("method").example().signals - store.supplies
        if missing:
            reads = ", ".join(signal.value for signal in missing)
            able = " or ".join(name for name, other in STORES.items() if missing <= other.supplies)
            raise ValueError(
                f"{self.method} reads {reads}, which the {self.store} store cannot supply: use store {able}"
            )

    def _check_numbers(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is the share of weights that do not exist, in [0, 1), not {self.sparsity}")
        for name in ("epochs", "batch_size", "lr", "width", "every", "limit", "evaluate_every"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)!r}")
        for name in ("warmup", "momentum", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, and is {getattr(self, name)!r}")
        for name in ("until", "fraction"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, in [0, 1], not {getattr(self, name)!r}")

    def _refuse_ignored(self) -> None:
        """An option that makes no difference must not make another run of it."""
        changed = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        for name, reason in self.ignored():
            if name in changed:
                value = getattr(self, name)
                raise ValueError(
                    f"{name} {value!r} {reason}, so it would have no effect: leave --{name.replace('_', '-')} out"
                )

    def ignored(self) -> Iterator[tuple[str, str]]:
        """The options that have no effect on this run, with the reason."""
        if self.optimizer == "adamw":
            yield "momentum", "is an option of SGD, and this run uses AdamW"
        if self.is_dense:
            sparse_only = ("start", "growth", "scope", "fraction", "every", "until", "init", "store")
            for name in sparse_only if self.sparsity == 0 else ("sparsity", *sparse_only):
                yield name, "is about sparse networks, and this run is dense"
            return
        entry: NamedMethod = self.entry("method")
        method = entry.example()
        if "growth" not in entry.options:
            yield "growth", f"is an option that {self.method} does not take"
        for name, values in (("fraction", (0.1, 0.2)), ("every", (10, 20))):
            if entry.ignores(name, *values):
                yield name, f"is an option that {self.method} does not use"
        if not entry.requires("until"):
            yield "until", f"is about the last rewiring, which {self.method} decides itself"
        if "start" not in entry.options or begins_dense(entry):
            yield "start", f"is about the first weights, which {self.method} decides itself"
        if not hasattr(method.drop, "scope") or not method.rewires:
            yield "scope", f"is about dropping the lowest weights, which {self.method} does not do"

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for the content. Where own code lies is not part of it."""
        content = self.to_dict()
        if self.code:
            content["code"] = [[code.role, code.name, code.digest] for code in self.code]
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=6).hexdigest()

    @property
    def words(self) -> list[str]:
        """What people call the run by: network, data set, method, sparsity, start."""
        names = [file_label(getattr(self, role)) for role in ("model", "data", "method")]
        if self.is_dense:
            return names
        growth, default = self.growth, type(self).growth
        names[-1] += f"-{growth}" if growth != default else ""
        return [*names, f"{100 * self.sparsity:g}%", self.start]

    @property
    def label(self) -> str:
        """A few words for people."""
        return " ".join([*self.words, f"seed {self.seed}"])

    @property
    def folder_name(self) -> str:
        """A folder name that people can read, such as ``vgg-small_digits_ggr_97_erk_s0_60c73f``."""
        words = [re.sub(r"[^\w.+-]", "", word) for word in self.words]
        return "_".join([*words, f"s{self.seed}", self.id[:6]])

    def arguments(self) -> list[str]:
        """The run as arguments of ``rewire train``: those that differ from the defaults, and the seed."""
        arguments = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "code" and (value != field.default or field.name == "seed"):
                arguments += [f"--{field.name.replace('_', '-')}", self._argument(field.name)]
        return arguments

    def _argument(self, name: str) -> str:
        """A field as it is typed; own code with the path of its file."""
        value, code = str(getattr(self, name)), self.code_of(name)
        if code is None or not is_reference(value) or not value.split(":")[0].endswith(".py"):
            return value
        return f"{code.path}:{value.split(':')[1]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. What earlier versions did not know is left out at its default."""
        content = {name: value for name, value in asdict(self).items() if _LATER.get(name, self) != value}
        if not self.code:
            del content["code"]
        return content

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Run":
        """The run that ``to_dict`` was called on; fields that are not known are refused with the nearest name.

        Its names are not looked up: a run can be read, listed and reported where its code is not installed.
        """
        known = {field.name: field.default for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"a run has no field {name!r}.{nearest(name, known)}")
        run = object.__new__(cls)
        content = known | values | {"code": tuple(Code(**code) for code in values.get("code", ()))}
        for name, value in content.items():
            object.__setattr__(run, name, value)
        return run


def begins_dense(method: "NamedMethod") -> bool:
    """Whether a method starts with every weight, so that no other start fits it."""
    return method.example().density.ends()[0] == 1
