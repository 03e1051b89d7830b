"""Memory for maps that is used again: fresh pages cost more than what a sparse layer computes.

The system hands out large blocks page by page, each one cleared first, and takes them back when they are freed. Here a
block goes back to the pool when the last tensor that uses it is gone.
"""

import math
import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SMALLEST = 1 << 16  # floats; the allocator of torch is as good below
PAGE = 1 << 10  # floats: sizes are rounded up to it
HUGE = 1 << 21  # bytes of a large page: the fewer pages a map has, the less looking up they cost
SHARE, SLACK = 1.5, 1 << 26  # what may be held: this share of the most that was ever in use at once, and these bytes


def _fresh(size: int) -> NDArray[np.float32]:
    """Memory from the system, on large pages where it has them."""
    whole = mmap.mmap(-1, 4 * size + HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(whole, dtype=np.float32)
    first = -block.ctypes.data % HUGE // 4
    return block[first : first + size]


class Pool:
    """Blocks of float32 by size.

    A size has its own blocks, so more must be held than is ever in use: the large gradients come when the small maps of
    the same step are free again. What is held stays below ``SHARE`` times the most that was in use at once.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.float32]]] = {}  # by size
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.float32]], NDArray[np.float32]]] = {}
        self.used = self.most = self.kept = 0  # bytes

    def empty(self, count: int) -> Tensor:
        """``count`` floats with anything in them."""
        if count < SMALLEST:
            return torch.empty(count, dtype=torch.float32, device="cpu")
        size = -(-count // PAGE) * PAGE
        try:  # one step, so that a block that comes back meanwhile (from another thread) does no harm
            block = self._free[size].pop()
            self.kept -= block.nbytes
        except (KeyError, IndexError):
            self._make_room(4 * size)
            block = _fresh(size)
        self.used += block.nbytes
        self.most = max(self.most, self.used)
        loan = block[:count]  # what the tensor holds: when it dies, the block is free
        key = id(loan)
        self._lent[key] = (weakref.ref(loan, lambda _: self._back(key)), block)
        return torch.from_numpy(loan)

    def release(self) -> None:
        """Give all free blocks back to the system."""
        self._free, self.kept = {}, 0

    def _back(self, key: int) -> None:
        block = self._lent.pop(key)[1]
        self.used -= block.nbytes
        self.kept += block.nbytes
        self._free.setdefault(block.size, []).append(block)

    def _make_room(self, size: int) -> None:
        limit = SHARE * max(self.most, self.used + size) + SLACK
        for other in list(self._free):
            while self._free[other] and self.used + self.kept + size > limit:
                self.kept -= self._free[other].pop().nbytes


POOL = Pool()


def empty_map(like: Tensor, batch: int, channels: int, height: int, width: int) -> Tensor:
    """An N, C, H, W tensor with the batch innermost in memory.

    >>> empty_map(torch.empty(0), 2, 3, 4, 5).stride()
    (1, 2, 30, 6)
    """
    return empty_like(like, (batch, channels, height, width), (1, batch, width * channels * batch, channels * batch))


def empty_like(like: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor without gaps, from the pool where it can be. It is no view of another one: users write into it."""
    pooled = type(like) in (Tensor, torch.nn.Parameter) and like.dtype == torch.float32 and like.device.type == "cpu"
    if not pooled or torch.compiler.is_compiling():
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)
    storage = POOL.empty(math.prod(shape)).untyped_storage()
    return like.new_empty(0).set_(storage, 0, tuple(shape), tuple(stride))
