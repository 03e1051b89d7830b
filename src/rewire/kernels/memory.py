"""A pool of memory for activations: fresh pages cost more than a sparse layer computes.

The system hands out large blocks page by page, each one cleared first, and takes them back when they are freed. Here a
block goes back to the pool when the last tensor that uses it is gone. Blocks are private mappings: what a forked child
writes does not reach its parent.
"""

import math
import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Block = NDArray[np.float32]
MIN_POOLED = 1 << 16  # floats; below this size torch's own allocator is as fast
ROUNDING = 1 << 10  # floats: sizes are rounded up to a multiple, so that similar ones share blocks
HUGE_PAGE = 1 << 21  # bytes of a huge page: the fewer pages an activation has, the fewer misses of the TLB
POOLED_TYPES = (torch.float32, torch.bfloat16)
SHARE, SLACK = 1.5, 1 << 26  # the pool holds at most SHARE times the largest use at any time, and SLACK bytes


def _map_block(size: int) -> Block:
    """A block of ``size`` floats from the system, aligned to huge pages and on them where the system allows it."""
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_ANONYMOUS", 0)
    mapping = mmap.mmap(-1, 4 * size + HUGE_PAGE, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(mapping, dtype=np.float32)
    first = -block.ctypes.data % HUGE_PAGE // 4
    return block[first : first + size]


class Pool:
    """Free blocks of float32 by size.

    Blocks of one size do not serve another one, so more must be held than is in use at any time: the large gradients of
    a step are needed when its small activations are free again.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Block]] = {}  # by size
        self._lent: dict[int, tuple[weakref.ref[Block], Block]] = {}
        self.used_bytes = self.peak_bytes = self.free_bytes = 0  # in use now, in use at most so far, free

    def empty(self, count: int) -> Tensor:
        """An uninitialised tensor of ``count`` floats."""
        if count < MIN_POOLED:
            return torch.empty(count, dtype=torch.float32, device="cpu")
        size = -(-count // ROUNDING) * ROUNDING
        try:  # one atomic step: another thread may return a block meanwhile
            block = self._free[size].pop()
            self.free_bytes -= block.nbytes
        except (KeyError, IndexError):
            self._make_room(4 * size)
            block = _map_block(size)
        self.used_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        view = block[:count]  # the tensor holds it: when the view is collected, the block is free again
        key = id(view)
        self._lent[key] = (weakref.ref(view, lambda _: self._return(key)), block)
        return torch.from_numpy(view)

    def release(self) -> None:
        """Give all free blocks back to the system."""
        self._free, self.free_bytes = {}, 0

    def _return(self, key: int) -> None:
        block = self._lent.pop(key)[1]
        self.used_bytes -= block.nbytes
        self.free_bytes += block.nbytes
        self._free.setdefault(block.size, []).append(block)

    def _make_room(self, size: int) -> None:
        """Give free blocks back to the system until ``size`` more bytes stay within the limit."""
        limit = SHARE * max(self.peak_bytes, self.used_bytes + size) + SLACK
        for other in list(self._free):
            while self._free[other] and self.used_bytes + self.free_bytes + size > limit:
                self.free_bytes -= self._free[other].pop().nbytes


POOL = Pool()


def empty_hwcn(like: Tensor, batch: int, channels: int, height: int, width: int) -> Tensor:
    """An uninitialised N, C, H, W tensor whose memory is [H, W, C, N].

    >>> empty_hwcn(torch.empty(0), 2, 3, 4, 5).stride()
    (1, 2, 30, 6)
    """
    return empty_strided(like, (batch, channels, height, width), (1, batch, width * channels * batch, channels * batch))


def empty_strided(like: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """An uninitialised tensor without gaps, from the pool if its type allows; no view, so it can be written to."""
    pooled = type(like) in (Tensor, torch.nn.Parameter) and like.dtype in POOLED_TYPES and like.device.type == "cpu"
    if not pooled or torch.compiler.is_compiling():
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)
    storage = POOL.empty(-(-math.prod(shape) * like.element_size() // 4)).untyped_storage()
    return like.new_empty(0).set_(storage, 0, tuple(shape), tuple(stride))
