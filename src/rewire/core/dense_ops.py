"""Flat positions in tensors of any memory format: gather, put, and the exact top-k of a dense tensor in tiles."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from rewire.core.topology import ScoredPositions, topk_mask

TILE = {"cpu": 1 << 16}  # elements: a tile and its scratch stay in a core's cache
ELSEWHERE = 1 << 24  # on an accelerator every tile costs a synchronisation, so they are larger
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of an element in bytes


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


def written_out(values: Tensor, positions: Tensor, shape: torch.Size) -> Tensor:
    """A dense tensor with values at flat positions and zeros elsewhere."""
    dense = values.new_zeros(shape)
    put(dense, positions, values)
    return dense


def mask_of(positions: Tensor, shape: torch.Size) -> Tensor:
    """A dense bool tensor that is true at flat positions."""
    mask = torch.zeros(shape, dtype=torch.bool, device=positions.device)
    put(mask, positions, True)
    return mask


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
    """Flat pieces of two tensors of one shape in row-major order, with the position at which each begins."""
    size = TILE.get(one.device.type, ELSEWHERE)
    if one.is_contiguous() and two.is_contiguous():
        one, two = one.view(-1), two.view(-1)
        yield from ((at, one[at : at + size], two[at : at + size]) for at in range(0, len(one), size))
        return
    row = max(one[0].numel(), 1)
    rows = max(size // row, 1)
    for at in range(0, len(one), rows):
        yield at * row, one[at : at + rows].reshape(-1), two[at : at + rows].reshape(-1)


def top_where_inactive(dense: Tensor, mask: Tensor, k: int, floor: float = 0.0) -> ScoredPositions:
    """The ``k`` largest ``|dense|`` where the mask is off, of those at or above ``floor`` and not zero. Exact.

    A first threshold is guessed from a sample; should it prove too high, the tiles are read once more without it.
    Memory: O(k + one tile).
    """
    guess = max(floor, _guess(dense, k))
    top = top_of_tiles(tiles(dense, mask), k, guess, dense)
    return top if len(top) >= k or guess <= floor else top_of_tiles(tiles(dense, mask), k, floor, dense)


def _guess(dense: Tensor, k: int, samples: int = 1 << 15) -> float:
    """A value that somewhat more than ``k`` of the magnitudes should exceed, or 0 where guessing does not pay."""
    if dense.numel() < 8 * samples or 4 * k > dense.numel() or not dense.is_contiguous():
        return 0.0
    stride = dense.numel() // samples | 1  # odd, so that it does not always meet the same column of a matrix
    sample = dense.view(-1)[::stride].abs()
    wanted = k / dense.numel() * len(sample)
    rank = int(wanted + 4 * wanted**0.5 + 8)  # four standard deviations on the safe side
    return float(sample.topk(rank).values[-1]) if rank < len(sample) else 0.0


def top_of_tiles(
    pieces: Iterable[tuple[int, Tensor, Tensor]], k: int, floor: float, like: Tensor, numel: int | None = None
) -> ScoredPositions:
    """Keep what reaches the floor, tile by tile; with a quarter too many, discard the smallest and raise the floor.

    A tile is its first position, its values and which of them are used. ``like`` gives dtype and device, and the
    number of positions where it has an element for each.
    """
    numel = like.numel() if numel is None else numel
    best = _BestSoFar(min(k, numel), like, numel)
    for begin, tile, used in pieces if best.k > 0 else ():
        best.add(_largest_candidates(tile, used, best.k, floor), begin)
        if best.count > best.k + best.k // 4:
            floor = best.discard_rest()
    best.discard_rest()
    return best.top()


class _BestSoFar:
    """A buffer for ``k`` candidates and some more, allocated once: many small ones would fragment the heap."""

    def __init__(self, k: int, like: Tensor, numel: int) -> None:
        self.k, self.count = k, 0
        room = 2 * k + k // 4  # up to a quarter too many, and then another k from one tile
        narrow = torch.int32 if numel < 1 << 31 else torch.int64
        self._values = torch.empty(room, dtype=like.dtype, device=like.device)
        self._positions = torch.empty(room, dtype=narrow, device=like.device)

    def add(self, found: ScoredPositions, begin: int) -> None:
        """Candidates of a tile, which begins at a position."""
        found = found.largest(self.k)
        end = self.count + len(found)
        self._values[self.count : end] = found.values
        self._positions[self.count : end] = found.positions + begin
        self.count = end

    def discard_rest(self) -> float:
        """Keep the ``k`` largest, in place and in order. Returns the smallest of them, or 0 if there is none."""
        marks = topk_mask(self._values[: self.count], self.k)
        size, self.count = TILE.get(marks.device.type, ELSEWHERE), 0
        for begin in range(0, len(marks), size):
            rows = marks[begin : begin + size].nonzero().squeeze(1) + begin
            end = self.count + len(rows)
            self._values[self.count : end] = self._values[rows]
            self._positions[self.count : end] = self._positions[rows]
            self.count = end
        return float(self._values[: self.count].min()) if self.count else 0.0

    def top(self) -> ScoredPositions:
        """The candidates."""
        return ScoredPositions(self._values[: self.count].clone(), self._positions[: self.count].long())


def _largest_candidates(tile: Tensor, used: Tensor, k: int, floor: float) -> ScoredPositions:
    """The candidates of a tile; without a floor, a number of the largest, the ``k`` largest among them."""
    guess = 0.0 if floor > 0 else _guess(tile, k)
    if guess > 0:
        candidates = _candidates(tile, used, guess)
        if len(candidates) >= k:
            return candidates
    return _candidates(tile, used, floor)


def _candidates(tile: Tensor, used: Tensor, floor: float) -> ScoredPositions:
    """Where ``|tile| >= floor``, not zero and not used. On the CPU numpy finds the few hits several times faster."""
    if tile.device.type == "cpu" and tile.dtype in (torch.float32, torch.float64):
        values = np.abs(tile.detach().numpy())
        hits = np.flatnonzero(values >= floor if floor > 0 else values > 0)
        hits = hits[~used.numpy()[hits]]
        return ScoredPositions(torch.from_numpy(values[hits]), torch.from_numpy(hits))
    size = tile.abs()
    free = (size >= floor if floor > 0 else size > 0) & ~used
    return ScoredPositions(size[free], free.nonzero().squeeze(1))


def zero_off(mask: Tensor, dense: Tensor) -> None:
    """Zero a tensor in place where the mask is off. Never by multiplying: NaN times zero is NaN."""
    torch.where(mask, dense, torch.zeros((), dtype=dense.dtype, device=dense.device), out=dense)
