"""A network, or a single layer, as a list of steps on one sample; one native call runs them on one or a few samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rewire.kernels import structures
from rewire.kernels.sample.activation import Step
from rewire.kernels.threads import thread_count
from rewire.kernels.tuning import SAMPLE_THREADS_PRODUCTS


class Program:
    """Steps, and the places of their activations in memory. The first reads the input, the last writes the output."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.size = _place_activations(self.steps)
        self.native = (structures.Step * len(steps))(*(step.native() for step in steps))
        self.work = sum(step.work for step in steps)

    @property
    def nbytes(self) -> int:
        """Memory of the CSR arrays."""
        arrays = [array for step in self.steps for array in (step.row_ptr, step.col_idx)]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def run(self, library: Any, x: Tensor, y: Tensor, memory: Tensor, steps: Any = None, workers: int = 1) -> None:
        """From the samples ``x`` to ``y``, both contiguous; each sample gets the result that it gets alone.

        ``workers``: samples that run at once, on one thread each; all threads share the steps of the samples that are
        left over. ``memory``: ``workers * size`` floats for the activations, zeros at first unless there is just one
        layer. ``steps``: to be run instead of ``native``.
        """
        steps, samples = self.native if steps is None else steps, len(x)
        threads = thread_count() if samples * self.work >= SAMPLE_THREADS_PRODUCTS else 1
        library.rewire_sample_run(
            steps, len(steps), samples, x.data_ptr(), x.numel() // samples, y.data_ptr(), y.numel() // samples,
            memory.data_ptr(), self.size, workers, threads,
        )  # fmt: skip


def _place_activations(steps: Sequence[Step]) -> int:
    """Give every activation its offset; return the size of the memory.

    Activations of one layout use the same memory one after the other: the zeros around their pixels stay zeros.
    """
    last_read = {read: at for at, step in enumerate(steps) for read in (step.source, step.addend) if read is not None}
    free: dict[tuple[int, ...], list[int]] = {}
    size = 0
    for at, step in enumerate(steps):
        if step.target.offset >= 0:
            offsets = free.setdefault(step.target.layout, [])
            step.target.offset = offsets.pop() if offsets else size
            size = max(size, step.target.offset + step.target.size)
        for read in {step.source, step.addend} - {None}:
            if read is not None and last_read[read] == at and read.offset >= 0:
                free.setdefault(read.layout, []).append(read.offset)
    return size
