"""Which weights of a model become sparse: those of known module types (see ``kinds``), unless they are left out."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from rewire._torch import CHANNEL_NORM, children_of, parameters_of
from rewire.core.layer import LayerSpec
from rewire.model.kinds import dense_shape, weights_of
from rewire.model.layouts import Layout
from rewire.model.state_names import mask_name, masks_of

Pattern = str | type[nn.Module]
Patterns = Pattern | Sequence[Pattern]

_WRAPPERS = ("_orig_mod", "module")  # torch.compile; DistributedDataParallel and DataParallel

# Parameters that are added or looked up. By name: tokens, positions, queries of a resampler, biases.
_ADDED = re.compile(
    r"(embed(ding)?s?|emb|tokens?|bias(es)?(_table)?|latents|prompts?|probe|quer(y|ies))$"
    r"|^bias_|^emb_|(^|_)(rel_?)?pos(ition(al)?)?_(emb\w*|enc\w*|[hw])$"
)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, CHANNEL_NORM)


@dataclass(frozen=True)
class SelectedWeight:
    """One weight that can be sparse: the module that it is in and its name there."""

    spec: LayerSpec
    module: nn.Module
    parameter: nn.Parameter
    attribute: str = "weight"

    @property
    def mask_name(self) -> str:
        """The name of the module's buffer that holds the mask."""
        return mask_name(self.attribute)


@dataclass(frozen=True)
class Candidate:
    """A weight of a known type: the name of the layer, and where its parameter is."""

    name: str
    path: str
    module: nn.Module
    attribute: str
    layout: Layout

    @property
    def parameter(self) -> nn.Parameter | None:
        """The parameter; ``None`` if a parametrization computes it."""
        return parameters_of(self.module).get(self.attribute)

    def matches(self, pattern: Pattern) -> bool:
        """Whether a glob names the layer, its module or its parameter; or whether its module is of a type."""
        if isinstance(pattern, str):
            names = {self.name, self.path or self.name, f"{self.path}.{self.attribute}"}
            return any(fnmatchcase(name, pattern) for name in names)
        return isinstance(self.module, pattern)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside ``torch.compile`` and data-parallel wrappers, so that names stay what they were."""
    for wrapper in _WRAPPERS:
        kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
        inner = children_of(model).get(wrapper)
        if inner is not None and (wrapper == "_orig_mod" or isinstance(model, kinds)):
            return unwrap(inner)
    return model


def candidates(model: nn.Module) -> list[Candidate]:
    """Every weight of a known type, in the order of the model. A layer has its module's name, or its parameter's.

    >>> [candidate.name for candidate in candidates(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(4, 1)))]
    ['0', '1.in_proj_weight', '1.out_proj']
    """
    return [
        Candidate(_layer_name(path, attribute), path, module, attribute, layout)
        for path, module in model.named_modules()
        for attribute, layout in weights_of(module).items()
    ]


def _layer_name(path: str, attribute: str) -> str:
    return path if path and attribute == "weight" else f"{path}.{attribute}" if path else attribute


def find_layers(
    model: nn.Module, include: Patterns | None = None, exclude: Patterns | None = None, frozen: bool = False
) -> tuple[list[SelectedWeight], dict[str, str]]:
    """The sparse layers in the order of the model, and the weights that were left out, with the reason.

    A weight shared by several modules is one layer, under its first name. One that is not trained is left out, unless
    ``frozen`` asks for it: those who only look want all of them. Left out with a reason is also every parameter of two
    or more dimensions whose module's type is not known, unless its name or module says that it does not multiply.
    """
    _refuse_lazy(model)
    known = candidates(model)
    left_out: dict[str, str] = {}
    chosen = set(known) if include is None else matching("include", include, known)
    chosen -= matching("exclude", exclude, known) if exclude is not None else set()
    embeddings = _embeddings(model)
    sparse: dict[int, SelectedWeight] = {}
    for candidate in known:
        weight = candidate.parameter
        reason = _reason(candidate, candidate in chosen, embeddings, frozen)
        if (
            not reason
            and candidate.layout.on_request
            and include is None
            and candidate.attribute not in masks_of(candidate.module)
        ):
            reason = candidate.layout.on_request
        if reason:
            left_out[candidate.name] = reason
        elif weight is not None and id(weight) not in sparse:
            sparse[id(weight)] = SelectedWeight(_spec(candidate, weight), candidate.module, weight, candidate.attribute)
    left_out |= _unknown(model, {id(candidate.parameter) for candidate in known}, known)
    if not known:
        raise ValueError(
            f"{type(model).__name__} has no Conv or Linear layer, nor another weight that Rewire knows: there is "
            f"nothing to make sparse{_listed(left_out)}"
        )
    if not sparse:
        raise ValueError(f"no weight is left to make sparse{_listed(left_out)}")
    return list(sparse.values()), left_out


def _listed(left_out: Mapping[str, str]) -> str:
    return ": " + "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) if left_out else ""


def _refuse_lazy(model: nn.Module) -> None:
    for path, module in model.named_modules():
        lazy = [
            attribute
            for attribute, parameter in parameters_of(module).items()
            if parameter is not None and is_lazy(parameter)
        ]
        if lazy:
            name = _layer_name(path, lazy[0])
            raise ValueError(f"{name} is lazy and has no shape yet: run one forward pass before sparsify")


def _embeddings(model: nn.Module) -> dict[int, str]:
    """The weights of embeddings, with the names of their modules."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {id(module.weight): path for path, module in model.named_modules() if isinstance(module, kinds)}


def _reason(candidate: Candidate, chosen: bool, embeddings: Mapping[int, str], frozen: bool) -> str:
    """Why a weight is left out, or nothing."""
    weight = candidate.parameter
    if not chosen:
        return "excluded"
    if weight is None:
        return f"its {candidate.attribute} is computed from others (a parametrization)"
    if id(weight) in embeddings:
        return f"shared with the embedding {embeddings[id(weight)] or 'itself'}"
    if not (weight.requires_grad or frozen):
        return "frozen"
    if hasattr(candidate.module, mask_name(candidate.attribute)) and candidate.attribute not in masks_of(
        candidate.module
    ):
        return f"its module has an attribute called {mask_name(candidate.attribute)} already"
    return ""


def _unknown(model: nn.Module, known: set[int], layers: Sequence[Candidate]) -> dict[str, str]:
    """Parameters that may multiply and that no known type describes: at least two dimensions are larger than 1."""
    computed = {candidate.module for candidate in layers if candidate.parameter is None}
    unknown = {}
    for path, module, attribute, parameter in _own_parameters(model):
        if id(parameter) in known or module in computed or isinstance(module, (ParametrizationList, *_NORMS)):
            continue
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or _ADDED.search(attribute):
            continue
        if sum(size > 1 for size in parameter.shape) > 1:
            kind = type(module).__name__
            unknown[f"{path}.{attribute}" if path else attribute] = (
                f"{kind} is not a type that Rewire knows: if this multiplies, call rewire.register({kind}, "
                f"weight={attribute!r}, inputs=..., outputs=...)"
            )
    return unknown


def _own_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        for attribute, parameter in parameters_of(module).items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield path, module, attribute, parameter


def _spec(candidate: Candidate, weight: nn.Parameter) -> LayerSpec:
    shape, layout = dense_shape(candidate.module, weight), candidate.layout
    return LayerSpec(candidate.name, shape, layout.groups, layout.transposed, layout.matrix, layout.stack)


def matching(argument: str, patterns: Patterns, known: Sequence[Candidate]) -> set[Candidate]:
    """The weights that name globs or module types stand for; each must stand for one at least."""
    listed = [patterns] if isinstance(patterns, (str, type)) else list(patterns)
    chosen: set[Candidate] = set()
    for pattern in listed:
        if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, nn.Module)):
            raise TypeError(f"{argument} takes name globs and module types, not {pattern!r}")
        hits = {candidate for candidate in known if candidate.matches(pattern)}
        if not hits:
            shown = pattern if isinstance(pattern, str) else pattern.__name__
            names = ", ".join(candidate.name for candidate in known)
            raise ValueError(f"{argument}={shown!r} matches no layer; the layers are {names}")
        chosen |= hits
    return chosen


def names_matching(argument: str, patterns: Patterns, model: nn.Module) -> set[str]:
    """The names of the layers that match; ``argument``: what to name in the error if a pattern matches none."""
    return {candidate.name for candidate in matching(argument, patterns, candidates(model))}


def units(spec: LayerSpec) -> tuple[int, int]:
    """How many inputs and outputs a layer has."""
    first, second = spec.matrix[0], spec.matrix[1] * spec.groups
    return (first, second) if spec.transposed else (second, first)


def endpoints(spec: LayerSpec, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input unit and the output unit that each flat position connects.

    >>> spec = LayerSpec("depthwise", torch.Size([2, 1, 3, 3]), groups=2)
    >>> endpoints(spec, torch.tensor([0, 9]))
    (tensor([0, 1]), tensor([0, 1]))
    """
    taps = math.prod(spec.matrix[2:])
    row = positions // (taps * spec.matrix[1])
    column = positions // taps % spec.matrix[1]
    across = row // (spec.matrix[0] // spec.groups) * spec.matrix[1] + column
    return (row, across) if spec.transposed else (across, row)
