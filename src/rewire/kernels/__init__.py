"""Truly sparse linear and conv2d on the CPU, each beside a plain-torch reference twin. ``info()`` tells which runs."""

from rewire.kernels.library import info

__all__ = ["info"]
