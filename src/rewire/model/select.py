"""Which weights of a model become sparse: every Conv and Linear weight, unless it is left out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from rewire.core.layer import LayerSpec

Pattern = str | type[nn.Module]

_WRAPPERS = ("_orig_mod", "module")  # torch.compile; DistributedDataParallel and DataParallel


@dataclass(frozen=True)
class Found:
    """One weight that can be sparse and the module it sits in."""

    spec: LayerSpec
    module: nn.Module
    parameter: nn.Parameter


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside ``torch.compile`` and data-parallel wrappers, so that names stay what they were."""
    for wrapper in _WRAPPERS:
        kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
        inner = model._modules.get(wrapper)
        if inner is not None and (wrapper == "_orig_mod" or isinstance(model, kinds)):
            return unwrap(inner)
    return model


def conv_and_linear(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every Conv and Linear module with its name."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return [(path or "weight", module) for path, module in model.named_modules() if isinstance(module, kinds)]


def find_layers(
    model: nn.Module,
    include: Pattern | Sequence[Pattern] | None = None,
    exclude: Pattern | Sequence[Pattern] | None = None,
    frozen: bool = False,
) -> tuple[list[Found], dict[str, str]]:
    """The sparse layers in the order of the model, and the weights that were left out, with the reason.

    A weight shared by several modules is one layer, under its first name. One that is not trained is left out, unless
    ``frozen`` asks for it: those who only look want all of them.
    """
    candidates = conv_and_linear(model)
    if not candidates:
        raise ValueError(f"{type(model).__name__} has no Conv or Linear layer: there is nothing to make sparse")
    wanted = _matching("include", include, candidates) if include is not None else {name for name, _ in candidates}
    wanted -= _matching("exclude", exclude, candidates) if exclude is not None else set()
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    found: dict[int, Found] = {}
    left_out: dict[str, str] = {}
    for name, module in candidates:
        weight = module._parameters.get("weight")
        reason = _reason(name, weight, name in wanted, embedded, frozen)
        if reason:
            left_out[name] = reason
        elif weight is not None and id(weight) not in found:
            found[id(weight)] = Found(_spec(name, module, weight), module, weight)
    if not found:
        raise ValueError(f"no weight is left to make sparse: {'; '.join(f'{n}: {r}' for n, r in left_out.items())}")
    return list(found.values()), left_out


def _reason(name: str, weight: nn.Parameter | None, wanted: bool, embedded: set[int], frozen: bool) -> str:
    """Why a weight is left out, or nothing."""
    if isinstance(weight, UninitializedParameter):
        raise ValueError(f"{name} is lazy and has no shape yet: run one forward pass before sparsify")
    if not wanted:
        return "excluded"
    if weight is None:
        return "its weight is computed from others (a parametrization)"
    if id(weight) in embedded:
        return "shared with an embedding"
    if not (weight.requires_grad or frozen):
        return "frozen"
    return ""


def _spec(name: str, module: nn.Module, weight: nn.Parameter) -> LayerSpec:
    transposed = bool(getattr(module, "transposed", False))
    shape = getattr(module, "dense_shape", weight.shape)  # a packed weight is a list of values
    return LayerSpec(name, torch.Size(shape), int(getattr(module, "groups", 1)), transposed)


def names_matching(what: str, patterns: Pattern | Sequence[Pattern], model: nn.Module) -> set[str]:
    """The names of the Conv and Linear layers that match; ``what``: the argument to name if a pattern matches none."""
    return _matching(what, patterns, conv_and_linear(model))


def _matching(
    what: str, patterns: Pattern | Sequence[Pattern], candidates: Iterable[tuple[str, nn.Module]]
) -> set[str]:
    listed = [patterns] if isinstance(patterns, (str, type)) else list(patterns)
    chosen: set[str] = set()
    for pattern in listed:
        if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, nn.Module)):
            raise TypeError(f"{what} takes name globs and module types, not {pattern!r}")
        hits = {name for name, module in candidates if _hit(pattern, name, module)}
        if not hits:
            shown = pattern if isinstance(pattern, str) else pattern.__name__
            raise ValueError(f"{what}={shown!r} matches no layer; the layers are {', '.join(n for n, _ in candidates)}")
        chosen |= hits
    return chosen


def _hit(pattern: Pattern, name: str, module: nn.Module) -> bool:
    if isinstance(pattern, str):
        return fnmatchcase(name, pattern) or fnmatchcase(f"{name}.weight", pattern)
    return isinstance(module, pattern)


def units(spec: LayerSpec) -> tuple[int, int]:
    """How many inputs and outputs a layer has."""
    first, second = spec.shape[0], spec.shape[1] * spec.groups
    return (first, second) if spec.transposed else (second, first)


def endpoints(spec: LayerSpec, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input unit and the output unit that each flat position connects.

    >>> spec = LayerSpec("depthwise", torch.Size([2, 1, 3, 3]), groups=2)
    >>> endpoints(spec, torch.tensor([0, 9]))
    (tensor([0, 1]), tensor([0, 1]))
    """
    taps = math.prod(spec.shape[2:])
    row = positions // (taps * spec.shape[1])
    column = positions // taps % spec.shape[1]
    across = row // (spec.shape[0] // spec.groups) * spec.shape[1] + column
    return (row, across) if spec.transposed else (across, row)
