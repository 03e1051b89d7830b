"""What is tried with every model of the zoo: each ability is exact, or refused by a sentence that names the layer."""

import copy
import logging
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.zoo.hub import Entry
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rewire
from rewire.analysis.density import masks

METHOD = rewire.rigl(density=0.3, every=2, until=100)
TOLERANCE = 1e-5  # relative: many models compute their norms and softmax in float32, whatever their weights are

MULTIPLY = ("mm", "addmm", "bmm", "baddbmm", "mv", "convolution", "_convolution", "lstm", "gru", "rnn_tanh", "linear")

LOOKED_UP = re.compile("embed|position|rel_pos|tokens?$|bias$")


@dataclass(frozen=True)
class Outcome:
    """How one ability did with one model."""

    word: str  # "exact", "refused" or "wrong"
    detail: str = ""


class WrongError(AssertionError):
    """A result that differs from what it must be."""


@dataclass
class Trained:
    """A model, its optimizer and its rewirer after some steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rewirer: rewire.Rewirer
    inputs: tuple[Tensor, ...]

    def train(self, steps: int, begin: int = 0) -> "Trained":
        """Ordinary steps towards a fixed random target."""
        self.model.train()
        for step in range(begin, begin + steps):
            torch.manual_seed(step)
            y = self.model(*self.inputs)
            target = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
            self.optimizer.zero_grad()
            (y - target).square().mean().backward()
            self.optimizer.step()
        self.rewirer.check()
        return self

    def output(self) -> Tensor:
        """What the model computes in evaluation."""
        return evaluated(self.model, self.inputs)


def start(entry: Entry, store: str = "masked", seed: int | None = None, **options: Any) -> Trained:
    """A freshly built sparse model. With a ``seed`` the parameters are other ones than the entry's."""
    model = entry.build()
    if seed is not None:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.1)
    evaluated(model, entry.inputs())  # some change the types of their parameters at the first pass
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Trained(
        *(model, optimizer, rewire.sparsify(model, optimizer, METHOD, store=store, **entry.options, **options)),
        entry.inputs(),
    )


def evaluated(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        return model.eval()(*inputs)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    if one.shape != other.shape:
        raise WrongError(f"{tuple(other.shape)} instead of {tuple(one.shape)}")
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-3)) if one.numel() else 0.0


def require_close(one: Tensor, other: Tensor, what: str) -> None:
    if not (difference := apart(one, other)) <= TOLERANCE:
        raise WrongError(f"{what} differs by {difference:.1e}")


class Multiplied(TorchDispatchMode):
    """Records the memory of all tensors that enter a matrix product or a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: set[int] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if operation.overloadpacket.__name__ in MULTIPLY:
            for tensor in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, Tensor):
                    self.memory.add(tensor.untyped_storage().data_ptr())
        return operation(*args, **(kwargs or {}))


def unmentioned(trained: Trained) -> list[str]:
    """Parameters of two or more dimensions that multiply, are not sparse and are named nowhere."""
    with Multiplied() as seen:
        trained.model.train()(*trained.inputs)
    rewirer = trained.rewirer
    sparse = {id(layer.parameter) for layer in rewirer.layers}
    named = rewirer.left_out.keys()
    missing = []
    for path, module in trained.model.named_modules():
        for attribute, parameter in module._parameters.items():
            full = f"{path}.{attribute}".lstrip(".")
            if parameter is None or sum(size > 1 for size in parameter.shape) < 2 or id(parameter) in sparse:
                continue
            if LOOKED_UP.search(full) or isinstance(module, nn.Embedding):  # an input of what multiplies
                continue
            hit = parameter.untyped_storage().data_ptr() in seen.memory
            if hit and not {full, path, full.partition(".parametrizations")[0]} & named:
                missing.append(full)
    return missing


def masked(entry: Entry) -> Outcome:
    """Trained: the budget holds to the weight, zeros stay zeros, nothing that multiplies goes unmentioned."""
    trained = start(entry)
    budget = trained.rewirer.nnz
    trained.train(4)
    rewirer = trained.rewirer
    if missing := unmentioned(trained):
        raise WrongError(f"dense and not mentioned: {', '.join(missing)}")
    if rewirer.nnz != budget or budget != sum(int(layer.mask.sum()) for layer in rewirer.layers):
        raise WrongError(f"{rewirer.nnz} weights instead of {budget}")
    if not rewirer.history:
        raise WrongError("no rewiring")
    for layer in rewirer.layers:
        if bool(layer.parameter.detach()[~layer.mask].any()):
            raise WrongError(f"{layer.name} has weights outside of its mask")
    if not torch.equal(trained.output(), evaluated(rewire.to_dense(trained.model), trained.inputs)):
        raise WrongError("to_dense computes something else")
    return Outcome("exact", f"{rewirer.density:.2f} / {rewirer.overall_density:.2f}")


def packed(entry: Entry) -> Outcome:
    """The same topology and the same weights as masked, after the same steps."""
    reference = start(entry).train(4)
    other = start(entry, "packed").train(4)
    for one, two in zip(reference.rewirer.layers, other.rewirer.layers, strict=True):
        if not torch.equal(one.active(), two.active()):
            raise WrongError(f"{one.name} was rewired in another way than masked")
    weights, again = rewire.to_dense(reference.model).state_dict(), rewire.to_dense(other.model).state_dict()
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            require_close(tensor, again[name], name)
    require_close(reference.output(), other.output(), "the output")
    layers, notes = len(other.rewirer.layers), len(other.rewirer.store.notes)
    return Outcome("exact", f"{layers - notes} of {layers} layers")


def pack(entry: Entry) -> Outcome:
    """Packed for inference."""
    trained = start(entry).train(2)
    fast = rewire.pack(trained.model, densest=1.0)
    require_close(trained.output(), evaluated(fast, trained.inputs), "the output")
    return Outcome("exact")


def shrink(entry: Entry) -> Outcome:
    """Without empty neurons."""
    trained = start(entry).train(2)
    small = rewire.shrink(trained.model.eval(), trained.inputs)
    require_close(trained.output(), evaluated(small, trained.inputs), "the output")
    sizes = [sum(one.numel() for one in model.parameters()) for model in (trained.model, small)]
    return Outcome("exact", f"{sizes[0]:,} to {sizes[1]:,}")


def save_and_load(entry: Entry) -> Outcome:
    """A sparse file, read into a plain model."""
    trained = start(entry).train(2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        rewire.save_sparse(trained.model, file)
        fresh, compact = entry.build(), entry.build()
        rewire.load_sparse(file, fresh)
        rewire.load_sparse(file, compact, packed=True)
    if not torch.equal(trained.output(), evaluated(fresh, trained.inputs)):
        raise WrongError("the loaded model computes something else")
    mine, others = masks(trained.model), masks(compact)
    sparse = {layer.name for layer in trained.rewirer.layers}
    for name in sparse:
        if not torch.equal(mine[name], others[name]):
            raise WrongError(f"{name} was loaded with another topology")
    require_close(trained.output(), evaluated(compact, trained.inputs), "the packed output")
    return Outcome("exact")


def resume(entry: Entry) -> Outcome:
    """Stopped, and continued in another process's objects: bit for bit, in both stores."""
    for store in ("masked", "packed"):
        trained = start(entry, store).train(3)
        parts = (trained.model, trained.optimizer, trained.rewirer)
        saved = copy.deepcopy([one.state_dict() for one in parts])
        trained.train(2, begin=3)
        again = start(entry, store, seed=1)
        for one, state in zip((again.model, again.optimizer, again.rewirer), saved, strict=True):
            one.load_state_dict(state)
        again.train(2, begin=3)
        mine, others = trained.model.state_dict(), again.model.state_dict()
        for name, tensor in mine.items():
            if not torch.equal(tensor, others[name]):
                raise WrongError(f"{store}: {name} differs after resuming")
    return Outcome("exact")


ABILITIES: dict[str, Callable[[Entry], Outcome]] = {
    "masked": masked,
    "packed": packed,
    "pack": pack,
    "shrink": shrink,
    "save and load": save_and_load,
    "resume": resume,
}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and logs of other packages, and of ours about tracing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def outcome(entry: Entry, ability: str) -> Outcome:
    """Exact, refused by a sentence that names a layer or the model, or wrong."""
    try:
        with quiet():
            return ABILITIES[ability](entry)
    except WrongError as error:
        return Outcome("wrong", str(error))
    except Exception as error:  # whatever is raised: what it says decides
        sentence = str(error).strip().splitlines()[0] if str(error).strip() else ""
        kind = type(error).__name__
        return Outcome("refused" if _names_a_layer(entry, error, sentence) else "wrong", f"{kind}: {sentence}")


def _names_a_layer(entry: Entry, error: Exception, sentence: str) -> bool:
    """Whether a message is Rewire's own and says where: the name of a module, or the type of the model."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if Path(rewire.__file__).parent not in raised_in.parents:
        return False
    model = entry.build()
    names = [name for name, _ in model.named_modules() if name] + [type(model).__name__]
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", sentence) for name in names)
