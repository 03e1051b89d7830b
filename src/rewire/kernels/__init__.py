"""Sparse linear and convolution layers on the CPU: native kernels, and a reference implementation in plain torch.

``batch/`` computes batches, forward and backward, in HWCN layout; ``sample/`` runs a whole network on one input in one
native call; ``native/`` is the C++ of both. ``docs/kernels.md`` explains them.
"""


def info() -> dict[str, object]:
    """Which kernels run: the instruction set in use, those available, and the number of threads.

    >>> sorted(info())
    ['available', 'isa', 'threads']
    """
    from rewire.kernels.library import info as loaded  # here, so that ``python -m rewire.kernels.build`` needs no torch

    return loaded()
