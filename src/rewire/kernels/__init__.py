"""Truly sparse linear and conv2d on the CPU, each beside a plain-torch reference twin. ``info()`` tells which runs."""


def info() -> dict[str, object]:
    """Which kernels run: the instruction set in use, those available, and the number of threads.

    >>> sorted(info())
    ['available', 'isa', 'threads']
    """
    from rewire.kernels.library import info as loaded  # here, so that ``python -m rewire.kernels.build`` needs no torch

    return loaded()
