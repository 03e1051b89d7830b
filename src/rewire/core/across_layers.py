"""Questions about all layers at once: their strongest inactive weights, and the mean signal of each."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rewire.core.layer import Layer, Signal, numel
from rewire.core.ranks import ALONE, Ranks, total
from rewire.core.topology import Top, merge

NOTHING = -(1 << 20)  # the exponent of zero


def strongest(
    layers: Sequence[Layer], signal: Signal, k: int, scales: Sequence[float] | None = None, ranks: Ranks = ALONE
) -> list[Top]:
    """The ``k`` largest ``|signal|`` at the inactive positions of all layers, as one list per layer.

    Streaming: layer by layer, keeping the k largest seen so far, whose smallest is the floor below which the next layer
    discards a value before copying it. Largest layers first, because they raise the floor fastest; the order does not
    change the answer. Values are divided by ``scales`` for the comparison when given.
    """
    scales = scales or [1.0] * len(layers)
    found: dict[int, Top] = {}
    floor = 0.0
    for i in sorted(range(len(layers)), key=lambda i: -numel(layers[i])):
        # With scales, a hair below the floor: multiplying back could round a tie away, and merge() decides exactly.
        least = floor if scales[i] == 1.0 else floor * scales[i] * (1 - 1e-6)
        found[i] = layers[i].top_inactive(signal, 0 if layers[i].frozen else k, least)
        if sum(map(len, found.values())) >= k:
            seen = sorted(found)  # in the order of the layers, so that ties fall as they would in one sort
            best = merge([found[j] for j in seen], k, [scales[j] for j in seen])
            floor = min(float(t.values.min()) / scales[j] for j, t in zip(seen, best, strict=True) if len(t))
            found = dict(zip(seen, best, strict=True))
    return ranks.merge([found[i] for i in range(len(layers))], k, scales)


def means(layers: Sequence[Layer], signal: Signal, ranks: Ranks) -> list[float]:
    """The mean ``|signal|`` of the active weights of each layer, exact to the last bit on any number of ranks."""
    sizes = [layer.read(signal).abs() for layer in layers]
    return exact_means(sizes, [layer.nnz for layer in layers], ranks)


def exact_means(sizes: Sequence[Tensor], counts: Sequence[int], ranks: Ranks) -> list[float]:
    """The sum of each list of values, none of them negative, over all ranks, divided by the count that belongs to it.

    Summed as whole multiples of a power of two, as fine as fits: the result does not depend on who adds what.

    >>> exact_means([torch.tensor([1.0, 2.0, 6.0])], [3], ALONE)
    [3.0]
    """
    largest = [float(one.max()) if len(one) else 0.0 for one in sizes]
    exponents = [math.frexp(most)[1] if most else NOTHING for most in largest]
    shared = [max(column) for column in zip(*ranks.gather(exponents), strict=True)]
    shifts = [62 - count.bit_length() - most for count, most in zip(counts, shared, strict=True)]
    sums = total(
        ranks, (_whole(one, shift) if most else 0 for one, shift, most in zip(sizes, shifts, largest, strict=True))
    )
    return [math.ldexp(s / max(count, 1), -shift) for s, count, shift in zip(sums, counts, shifts, strict=True)]


def _whole(values: Tensor, shift: int) -> int:
    """The sum of ``values * 2**shift``, each rounded; in two steps, because the factor alone may be out of range."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    half = shift // 2
    return int((wide * 2.0**half * 2.0 ** (shift - half)).round().long().sum())
