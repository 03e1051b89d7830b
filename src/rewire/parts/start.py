"""Starts: where the first weights are. A rule counts them per layer, and ``Scattered`` or ``Connected`` places them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rewire._lookup import choose
from rewire.core.layer import Context, LayerSpec
from rewire.core.protocols import Rule, Start
from rewire.core.topology import sample_inactive
from rewire.parts.apportion import apportion
from rewire.parts.start_from_weights import Given, Magnitude, Nonzero


@dataclass(frozen=True)
class Uniform:
    """The same density in every layer."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Counts in proportion to the size of each layer."""
        sizes = [spec.numel for spec in specs]
        return apportion(n, sizes, sizes, least)


@dataclass(frozen=True)
class ErdosRenyi:
    """Density of a layer proportional to ``(n_in + n_out) / (n_in n_out)``: small layers are denser (SET)."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Counts; a layer that would exceed density 1 is made dense, and the rest is divided again."""
        sizes = [spec.numel for spec in specs]
        scores = [spec.stack * sum(_matrix_of_stack(spec)[:2]) * spec.matrix[2:].numel() for spec in specs]
        return apportion(n, scores, sizes, least)


@dataclass(frozen=True)
class ErdosRenyiKernel:
    """ERK: density proportional to ``(n_in + n_out + w + h) / (n_in n_out w h)`` (RigL).

    The count is the density times the size, so it is proportional to the sum of the shape. Linear layers have no
    ``w`` and ``h``; grouped layers count the inputs of one group.

    >>> specs = [LayerSpec("a", torch.Size([2, 3])), LayerSpec("b", torch.Size([20, 30]))]
    >>> ErdosRenyiKernel()(specs, 61, [1, 1])
    [6, 55]
    """

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Counts; a layer that would exceed density 1 is made dense, and the rest is divided again."""
        scores = [spec.stack * sum(_matrix_of_stack(spec)) for spec in specs]  # a stack: the sum over its matrices
        return apportion(n, scores, [spec.numel for spec in specs], least)


@dataclass(frozen=True)
class Dense:
    """Every weight, for methods whose density falls from 1 (GMP)."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """The sizes of the layers, whose sum must be the budget ``n``."""
        sizes = [spec.numel for spec in specs]
        if n != sum(sizes):
            raise ValueError(
                f"a dense start has all {sum(sizes)} weights, but the method's density at step 0 allows {n}; "
                "use rewire.gmp, a density that falls from 1, or another start"
            )
        return sizes


@dataclass(frozen=True)
class Explicit:
    """A density for each layer by name globs; the first glob that matches a layer counts.

    Layers that no glob matches share the rest of the budget at one common density.
    """

    densities: tuple[tuple[str, float], ...]

    def __init__(self, densities: Mapping[str, float] | Sequence[tuple[str, float]]) -> None:
        pairs = densities.items() if isinstance(densities, Mapping) else densities
        object.__setattr__(self, "densities", tuple((str(glob), float(d)) for glob, d in pairs))
        for glob, density in self.densities:
            if not 0 < density <= 1:
                raise ValueError(f"density of {glob!r} must lie in (0, 1], not {density}")

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Counts: matched layers get their own density, the others divide the rest of ``n``."""
        self._refuse_unmatched(specs)
        matched = [next((d for glob, d in self.densities if fnmatchcase(s.name, glob)), None) for s in specs]
        sizes = [spec.numel for spec in specs]
        fixed = [max(round(d * size), floor) if d else 0 for d, size, floor in zip(matched, sizes, least, strict=True)]
        weights = [size if d is None else 0 for d, size in zip(matched, sizes, strict=True)]
        floors = [count or floor for count, floor in zip(fixed, least, strict=True)]
        caps = [count or size for count, size in zip(fixed, sizes, strict=True)]
        if not any(weights) and abs(n - sum(fixed)) <= len(specs):  # the budget is rounded once, each layer by itself
            floors, caps, weights = list(least), sizes, fixed
        if not sum(floors) <= n <= sum(caps):
            raise ValueError(
                f"the densities given per layer ask for {sum(fixed)} weights and leave between {sum(floors)} and "
                f"{sum(caps)} possible, but the method's density allows {n} of {sum(sizes)}; "
                f"pass density={sum(fixed) / sum(sizes):.6g} or let some layers match no pattern"
            )
        return apportion(n, weights, caps, floors)

    def _refuse_unmatched(self, specs: Sequence[LayerSpec]) -> None:
        names = [spec.name for spec in specs]
        for glob, _ in self.densities:
            if not any(fnmatchcase(name, glob) for name in names):
                raise ValueError(f"no sparse layer matches {glob!r}; the layers are {', '.join(names)}")


@dataclass(frozen=True)
class Scattered:
    """Each layer's weights placed uniformly at random, as the papers do."""

    rule: Rule
    is_random: ClassVar[bool] = True

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Count, then draw the positions."""
        counts = self.rule(specs, n, [1] * len(specs))
        none = torch.empty(0, dtype=torch.int64)
        return [_fill(none, spec, k, i, ctx) for i, (spec, k) in enumerate(zip(specs, counts, strict=True))]


@dataclass(frozen=True)
class Connected:
    """First a weight for every output, then one for every input, as far as the budget goes; the rest is scattered.

    At very low densities a scattered start may let no signal through: gradients are then exactly zero, and growth by
    gradient has nothing to rank. What small layers need for this is taken from layers that have more.
    """

    rule: Rule
    is_random: ClassVar[bool] = True

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Connect the units, count, then draw the other positions."""
        covers = [_cover(spec, ctx.generator("cover", i)) for i, spec in enumerate(specs)]
        reserved = _affordable(n, [len(outputs) for outputs, _ in covers], [len(inputs) for _, inputs in covers])
        counts = self.rule(specs, n, reserved)
        return [
            _fill(torch.cat(cover)[:k].sort().values, spec, k, i, ctx)
            for i, (spec, cover, k) in enumerate(zip(specs, covers, counts, strict=True))
        ]


uniform, erdos_renyi, erdos_renyi_kernel, dense, explicit = (
    Uniform(),
    ErdosRenyi(),
    ErdosRenyiKernel(),
    Dense(),
    Explicit,
)
RULES: dict[str, Rule] = {"erk": erdos_renyi_kernel, "uniform": uniform, "er": erdos_renyi, "dense": dense}
_SPARSE_RULES = {name: rule for name, rule in RULES.items() if name != "dense"}
STARTS: dict[str, Start] = {
    **{name: Scattered(rule) for name, rule in RULES.items()},
    **{f"connected-{name}": Connected(rule) for name, rule in _SPARSE_RULES.items()},
    "magnitude": Magnitude(erdos_renyi_kernel),
    **{f"magnitude-{name}": Magnitude(rule) for name, rule in _SPARSE_RULES.items()},
    "magnitude-network": Magnitude(),
    "nonzero": Nonzero(),
}
AnyStart = str | Mapping[str, float] | Mapping[str, Tensor] | nn.Module | Start


_LABELS = {"erk": "ERK", "uniform": "uni", "er": "ER"}


def start_label(name: str) -> str:
    """What tables call a start.

    >>> start_label("erk"), start_label("connected-uniform")
    ('ERK', 'conn. uni')
    """
    rule = name.removeprefix("connected-")
    return ("conn. " if rule != name else "") + _LABELS.get(rule, rule)


def start_from(description: AnyStart) -> Start:
    """The start that is described by a name, a dictionary by layer name or a model; a part is returned as it is.

    The values of a dictionary are densities, bool masks or positions. Of a model, its topology is taken.

    >>> start_from({"stem*": 1.0})
    Scattered(rule=Explicit(densities=(('stem*', 1.0),)))
    """
    if isinstance(description, nn.Module):
        return Given(description)
    if isinstance(description, Mapping):
        by_topology = any(isinstance(value, Tensor) and value.dim() > 0 for value in description.values())
        entries: Any = description
        return Given(entries) if by_topology else Scattered(Explicit(entries))
    return description if callable(description) else choose("start", description, STARTS)


def _matrix_of_stack(spec: LayerSpec) -> torch.Size:
    """The shape of each matrix in a stack; a layer that is not a stack counts as a stack of one."""
    return torch.Size([spec.matrix[0] // spec.stack, *spec.matrix[1:]])


def _fill(placed: Tensor, spec: LayerSpec, k: int, index: int, ctx: Context) -> Tensor:
    """``placed`` and random other positions, ``k`` in all, sorted."""
    drawn = sample_inactive(placed, spec.numel, k - len(placed), ctx.generator("start", index))
    return torch.cat([placed, drawn]).sort().values


def _affordable(n: int, for_outputs: list[int], for_inputs: list[int]) -> list[int]:
    """How many of its connecting positions each layer gets out of ``n``; those for outputs come first."""
    if sum(for_outputs) >= n:
        return apportion(n, for_outputs, for_outputs, [1] * len(for_outputs))
    extra = apportion(min(n - sum(for_outputs), sum(for_inputs)), for_inputs, for_inputs)
    return [first + second for first, second in zip(for_outputs, extra, strict=True)]


def _cover(spec: LayerSpec, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The fewest positions that give every output a weight, and those that then give every remaining input one.

    Within a group, rows and columns are shuffled and paired; the shorter side is repeated until the longer is used up.
    The middle tap of a kernel is used: it never reads only padding, however small the feature map.
    """
    first, second = spec.matrix[0] // spec.groups, spec.matrix[1]  # rows and columns of one group
    longest, taps = max(first, second), spec.matrix[2:].numel()
    for_outputs, for_inputs = [], []
    for group in range(spec.groups):
        rows = torch.randperm(first, generator=generator).repeat(-(-longest // first))[:longest]
        columns = torch.randperm(second, generator=generator).repeat(-(-longest // second))[:longest]
        positions = ((group * first + rows) * second + columns) * taps + _middle(spec.matrix[2:])
        outputs = second if spec.transposed else first
        for_outputs.append(positions[:outputs])
        for_inputs.append(positions[outputs:])
    return _shuffled(torch.cat(for_outputs), generator), _shuffled(torch.cat(for_inputs), generator)


def _shuffled(positions: Tensor, generator: torch.Generator) -> Tensor:
    return positions[torch.randperm(len(positions), generator=generator)]


def _middle(kernel: Sequence[int]) -> int:
    """The flat position of a kernel's middle tap: 4 of a 3x3 kernel."""
    position = 0
    for size in kernel:
        position = position * size + size // 2
    return position
