"""Questions about all layers at once: their largest inactive signals, and the mean signal of each."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rewire.core.layer import Layer, numel
from rewire.core.ranks import ALONE, Ranks, total
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions, merge

EXPONENT_OF_ZERO = -(1 << 20)  # lower than that of any number


def largest_inactive(
    layers: Sequence[Layer], signal: AnySignal, k: int, scales: Sequence[float] | None = None, ranks: Ranks = ALONE
) -> list[ScoredPositions]:
    """The ``k`` largest ``|signal|`` at the inactive positions of all layers, as one list per layer.

    Streaming: layer by layer, keeping the k largest so far. The smallest of those is the floor below which the next
    layer discards a value before copying it. Largest layers first, because they raise the floor fastest; the order does
    not change the answer. With ``scales``, the values of a layer are divided by its scale for the comparison.
    """
    scales = scales or [1.0] * len(layers)
    tops: dict[int, ScoredPositions] = {}
    floor = 0.0
    for i in sorted(range(len(layers)), key=lambda i: -numel(layers[i])):
        # With scales, slightly below the floor: multiplying back could round a tie away, and merge() decides exactly.
        layer_floor = floor if scales[i] == 1.0 else floor * scales[i] * (1 - 1e-6)
        tops[i] = layers[i].top_inactive(signal, 0 if layers[i].frozen else k, layer_floor)
        if sum(map(len, tops.values())) >= k:
            visited = sorted(tops)  # in the order of the layers, so that ties fall as they would in one sort
            largest = merge([tops[j] for j in visited], k, [scales[j] for j in visited])
            minima = [float(t.values.min()) / scales[j] for j, t in zip(visited, largest, strict=True) if len(t)]
            floor = min(minima, default=0.0)  # there are none if k is 0
            tops = dict(zip(visited, largest, strict=True))
    return ranks.merge([tops[i] for i in range(len(layers))], k, scales)


def mean_magnitudes(layers: Sequence[Layer], signal: AnySignal, ranks: Ranks) -> list[float]:
    """The mean ``|signal|`` of the active weights of each layer, over all ranks."""
    return exact_means([layer.read(signal).abs() for layer in layers], [layer.nnz for layer in layers], ranks)


def exact_means(magnitudes: Sequence[Tensor], counts: Sequence[int], ranks: Ranks) -> list[float]:
    """The sum of each list of non-negative values over all ranks, divided by its count.

    Values are rounded to multiples of a power of two that is as small as 63 bits allow, and summed as integers: the
    result does not depend on the order of the sum or on how the layer is sharded.

    >>> exact_means([torch.tensor([1.0, 2.0, 6.0])], [3], ALONE)
    [3.0]
    """
    maxima = [float(values.max()) if len(values) else 0.0 for values in magnitudes]
    exponents = [math.frexp(maximum)[1] if maximum else EXPONENT_OF_ZERO for maximum in maxima]
    shared_exponents = [max(column) for column in zip(*ranks.gather(exponents), strict=True)]
    shifts = [62 - count.bit_length() - exponent for count, exponent in zip(counts, shared_exponents, strict=True)]
    sums = total(
        ranks,
        (
            _integer_sum(values, shift) if maximum else 0
            for values, shift, maximum in zip(magnitudes, shifts, maxima, strict=True)
        ),
    )
    return [math.ldexp(s / max(count, 1), -shift) for s, count, shift in zip(sums, counts, shifts, strict=True)]


def _integer_sum(values: Tensor, shift: int) -> int:
    """The sum of ``values * 2**shift``, each rounded; multiplied in two steps, because ``2**shift`` may overflow."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    half = shift // 2
    return int((wide * 2.0**half * 2.0 ** (shift - half)).round().long().sum())
