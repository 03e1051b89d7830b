"""Flat positions in tensors of any memory format: gather, put, and the exact top-k of a dense tensor in tiles."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from rewire.topology import Top

TILE = {"cpu": 1 << 16}  # elements: a tile and its scratch stay in a core's cache
ELSEWHERE = 1 << 24  # on an accelerator every tile costs a synchronisation, so they are larger


def take(tensor: Tensor, positions: Tensor) -> Tensor:
    """The values at flat (row-major) positions, whatever the strides are."""
    if tensor.is_contiguous():
        return tensor.view(-1)[positions]
    return tensor[torch.unravel_index(positions, tensor.shape)]


def put(tensor: Tensor, positions: Tensor, values: Tensor | float | bool) -> None:
    """Write values at flat (row-major) positions, in place, whatever the strides are."""
    if isinstance(values, Tensor):
        values = values.to(tensor)
    if tensor.is_contiguous():
        tensor.view(-1)[positions] = values
    else:
        tensor[torch.unravel_index(positions, tensor.shape)] = values


def count(mask: Tensor) -> int:
    """How many elements of a bool tensor are true; on the CPU numpy counts many times faster."""
    return int(np.count_nonzero(mask.numpy()) if mask.device.type == "cpu" else torch.count_nonzero(mask))


def where_true(mask: Tensor) -> Tensor:
    """The flat positions of the true elements, sorted."""
    flat = mask.flatten()
    return torch.from_numpy(np.flatnonzero(flat.numpy())) if mask.device.type == "cpu" else flat.nonzero().squeeze(1)


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements share their memory, so that none can be written alone."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite. Their sum is finite then, which is many times faster to see."""
    return bool(tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)).isfinite()) or bool(
        tensor.isfinite().all()  # large finite numbers can overflow a sum
    )


def tiles(one: Tensor, two: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Flat pieces of two tensors of one shape in row-major order, with their first position; no more is ever copied."""
    size = TILE.get(one.device.type, ELSEWHERE)
    if one.is_contiguous() and two.is_contiguous():
        one, two = one.view(-1), two.view(-1)
        yield from ((at, one[at : at + size], two[at : at + size]) for at in range(0, len(one), size))
        return
    row = max(one[0].numel(), 1)
    rows = max(size // row, 1)
    for at in range(0, len(one), rows):
        yield at * row, one[at : at + rows].reshape(-1), two[at : at + rows].reshape(-1)


def top_where_off(dense: Tensor, mask: Tensor, k: int, floor: float = 0.0) -> Top:
    """The ``k`` largest ``|dense|`` where the mask is off, of those at or above ``floor`` and not zero. Exact.

    A first threshold is guessed from a sample; should it prove too high, the tiles are read once more without it.
    Memory: O(k + one tile).
    """
    if k <= 0:
        return Top(dense.new_empty(0), torch.empty(0, dtype=torch.int64, device=dense.device))
    guess = max(floor, _guess(dense, k))
    empty = Top(dense.new_empty(0), torch.empty(0, dtype=torch.int64, device=dense.device))
    found = top_of_tiles(tiles(dense, mask), k, guess, empty)
    return found if len(found) >= k or guess <= floor else top_of_tiles(tiles(dense, mask), k, floor, empty)


def _guess(dense: Tensor, k: int, samples: int = 1 << 15) -> float:
    """A value that somewhat more than ``k`` of the magnitudes should exceed, or 0 where guessing does not pay."""
    if dense.numel() < 8 * samples or 4 * k > dense.numel() or not dense.is_contiguous():
        return 0.0
    stride = dense.numel() // samples | 1  # odd, so that it does not always meet the same column of a matrix
    sample = dense.view(-1)[::stride].abs()
    wanted = k / dense.numel() * len(sample)
    rank = int(wanted + 4 * wanted**0.5 + 8)  # four standard deviations on the safe side
    return float(sample.topk(rank).values[-1]) if rank < len(sample) else 0.0


def top_of_tiles(pieces: Iterable[tuple[int, Tensor, Tensor]], k: int, floor: float, empty: Top) -> Top:
    """Tile by tile, keep what reaches the floor; when a quarter too many are held, keep the best and raise the floor.

    A tile is its first position, its values and which of them are used. ``empty`` gives dtype and device.
    """
    held, count = [Top(empty.values, empty.positions.int())], 0
    for begin, tile, used in pieces:
        found = _candidates(tile, used, floor)
        narrow = torch.int32 if begin + len(tile) < 1 << 31 else torch.int64  # half the memory while they are held
        held.append(Top(found.values, (found.positions + begin).to(narrow)))
        count += len(found)
        if count > k + k // 4:
            held, count = [_best(held, k)], k
            floor = float(held[0].values.min())
    best = _best(held, k)
    return Top(best.values, best.positions.long())


def _best(tops: list[Top], k: int) -> Top:
    joined = Top(torch.cat([t.values for t in tops]), torch.cat([t.positions for t in tops]))
    tops.clear()  # not held twice
    return joined.strongest(k)


def _candidates(tile: Tensor, used: Tensor, floor: float) -> Top:
    """Where ``|tile| >= floor``, not zero and not used. On the CPU numpy finds the few hits several times faster."""
    if tile.device.type == "cpu" and tile.dtype in (torch.float32, torch.float64):
        values = np.abs(tile.detach().numpy())
        hits = np.flatnonzero(values >= floor if floor > 0 else values > 0)
        hits = hits[~used.numpy()[hits]]
        return Top(torch.from_numpy(values[hits]), torch.from_numpy(hits))
    size = tile.abs()
    free = (size >= floor if floor > 0 else size > 0) & ~used
    return Top(size[free], free.nonzero().squeeze(1))
