"""Where the weights are at first: a rule that counts them per layer, and a placement that puts them there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from rewire._lookup import choose
from rewire.core.layer import Context, LayerSpec
from rewire.core.protocols import Rule, Start
from rewire.core.topology import sample_inactive
from rewire.parts.apportion import apportion


@dataclass(frozen=True)
class Uniform:
    """The same density in every layer."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """In proportion to the size."""
        sizes = [spec.numel for spec in specs]
        return apportion(n, sizes, sizes, least)


@dataclass(frozen=True)
class ErdosRenyi:
    """Density of a layer proportional to ``(n_in + n_out) / (n_in n_out)``: small layers are denser (SET)."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """A layer that would exceed density 1 is pinned dense, and the rest is divided anew."""
        sizes = [spec.numel for spec in specs]
        scores = [sum(spec.shape[:2]) * spec.shape[2:].numel() for spec in specs]
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
        """A layer that would exceed density 1 is pinned dense, and the rest is divided anew."""
        return apportion(n, [sum(spec.shape) for spec in specs], [spec.numel for spec in specs], least)


@dataclass(frozen=True)
class Dense:
    """Every weight, for methods whose density falls from 1 (GMP)."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """All of them, which must be the budget."""
        sizes = [spec.numel for spec in specs]
        if n != sum(sizes):
            raise ValueError(
                f"a dense start has all {sum(sizes)} weights, but the method's density at step 0 allows {n}; "
                "use rewire.gmp, a density that falls from 1, or another start"
            )
        return sizes


@dataclass(frozen=True)
class Explicit:
    """A density for each layer, by name globs; the first glob that matches a layer decides.

    Layers that no glob matches share what is left of the budget, at one density.
    """

    densities: tuple[tuple[str, float], ...]

    def __init__(self, densities: Mapping[str, float] | Sequence[tuple[str, float]]) -> None:
        pairs = densities.items() if isinstance(densities, Mapping) else densities
        object.__setattr__(self, "densities", tuple((str(glob), float(d)) for glob, d in pairs))
        for glob, density in self.densities:
            if not 0 < density <= 1:
                raise ValueError(f"density of {glob!r} must lie in (0, 1], not {density}")

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Matched layers first; the budget must agree with them."""
        self._refuse_unmatched(specs)
        given = [next((d for glob, d in self.densities if fnmatchcase(s.name, glob)), None) for s in specs]
        sizes = [spec.numel for spec in specs]
        wish = [max(round(d * size), low) if d else 0 for d, size, low in zip(given, sizes, least, strict=True)]
        free = [size if d is None else 0 for d, size in zip(given, sizes, strict=True)]
        low = [w or low for w, low in zip(wish, least, strict=True)]
        high = [w or size for w, size in zip(wish, sizes, strict=True)]
        if not any(free) and abs(n - sum(wish)) <= len(specs):  # the budget as a density, up to rounding
            low, high, free = list(least), sizes, wish
        if not sum(low) <= n <= sum(high):
            raise ValueError(
                f"the densities given per layer ask for {sum(wish)} weights and leave between {sum(low)} and "
                f"{sum(high)} possible, but the method's density allows {n} of {sum(sizes)}; "
                f"pass density={sum(wish) / sum(sizes):.6g} or let some layers match no pattern"
            )
        return apportion(n, free, high, low)

    def _refuse_unmatched(self, specs: Sequence[LayerSpec]) -> None:
        names = [spec.name for spec in specs]
        for glob, _ in self.densities:
            if not any(fnmatchcase(name, glob) for name in names):
                raise ValueError(f"no sparse layer matches {glob!r}; the layers are {', '.join(names)}")


@dataclass(frozen=True)
class Scattered:
    """Each layer's count placed uniformly at random: what the papers do."""

    rule: Rule

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Count, then draw."""
        counts = self.rule(specs, n, [1] * len(specs))
        nothing = torch.empty(0, dtype=torch.int64)
        return [_fill(nothing, spec, k, i, ctx) for i, (spec, k) in enumerate(zip(specs, counts, strict=True))]


@dataclass(frozen=True)
class Connected:
    """Every output gets an input, then every input an output, as far as the budget goes; the rest is scattered.

    At very low densities a scattered start can let no signal through at all, and a network whose gradients are all
    exactly zero cannot be revived by any method. What the small layers need is taken from the layers that have more.
    """

    rule: Rule

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Cover, count, then draw the rest."""
        covers = [_cover(spec, ctx.generator("cover", i)) for i, spec in enumerate(specs)]
        counts = self.rule(specs, n, _affordable(n, [len(out) for out, _ in covers], [len(back) for _, back in covers]))
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
STARTS: dict[str, Start] = {name: Scattered(rule) for name, rule in RULES.items()} | {
    f"connected-{name}": Connected(rule) for name, rule in RULES.items() if name != "dense"
}


_LABELS = {"erk": "ERK", "uniform": "uni", "er": "ER"}


def start_label(name: str) -> str:
    """What tables call a start.

    >>> start_label("erk"), start_label("connected-uniform")
    ('ERK', 'conn. uni')
    """
    rule = name.removeprefix("connected-")
    return ("conn. " if rule != name else "") + _LABELS.get(rule, rule)


def start_from(given: "str | Mapping[str, float] | Start") -> Start:
    """A start by its name (``erk``, ``connected-uniform``, ...), by densities per layer, or the part itself."""
    if isinstance(given, Mapping):
        return Scattered(Explicit(given))
    return given if callable(given) else choose("start", given, STARTS)


def _fill(placed: Tensor, spec: LayerSpec, k: int, index: int, ctx: Context) -> Tensor:
    """``placed`` and as many random positions as make it ``k``, sorted."""
    more = sample_inactive(placed, spec.numel, k - len(placed), ctx.generator("start", index))
    return torch.cat([placed, more]).sort().values


def _affordable(n: int, must: list[int], may: list[int]) -> list[int]:
    """How many of its cover each layer gets out of ``n``: first what reaches every output, then every input's use."""
    ones = [1] * len(must)
    if sum(must) >= n:
        return apportion(n, must, must, ones)
    more = apportion(min(n - sum(must), sum(may)), may, may)
    return [a + b for a, b in zip(must, more, strict=True)]


def _cover(spec: LayerSpec, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The fewest positions that give every output an input, and those that then give every input an output.

    Within a group, the longer side is walked once and the shorter side again and again, both shuffled. The middle tap
    of a kernel is used: it is the one that never reads only padding, however small the map.
    """
    first, second = spec.shape[0] // spec.groups, spec.shape[1]  # sizes of the two sides of one group
    longest, taps = max(first, second), spec.shape[2:].numel()
    must, may = [], []
    for group in range(spec.groups):
        rows = torch.randperm(first, generator=generator).repeat(-(-longest // first))[:longest]
        columns = torch.randperm(second, generator=generator).repeat(-(-longest // second))[:longest]
        positions = ((group * first + rows) * second + columns) * taps + _middle(spec.shape[2:])
        outputs = second if spec.transposed else first
        must.append(positions[:outputs])
        may.append(positions[outputs:])
    return _shuffled(torch.cat(must), generator), _shuffled(torch.cat(may), generator)


def _shuffled(positions: Tensor, generator: torch.Generator) -> Tensor:
    return positions[torch.randperm(len(positions), generator=generator)]


def _middle(kernel: Sequence[int]) -> int:
    position = 0
    for size in kernel:
        position = position * size + size // 2
    return position
