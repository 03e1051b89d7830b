"""Loads the native kernels that fit this processor, once, when they are first needed."""

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch

from rewire.kernels.build import LEVELS, compiler, library

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p

# The arguments of every function; the pointers come as integers, so nothing is converted in between.
_SIZES = [_LONG, _INT, _LONG]  # pixels, channels, batch
_HALVED = [_INT, _INT, _INT, _LONG]  # height and width after pooling, channels, batch
_RELU = [_INT, _FLOAT]  # whether there is one, and its upper limit
_SIGNATURES = {
    "rewire_tables": [_POINTER, _POINTER, _INT, _LONG, _POINTER],
    "rewire_forward": [*[_POINTER] * 4, _INT, *[_POINTER] * 6, _LONG, *_RELU, _INT],
    "rewire_backward": [*[_POINTER] * 6, _LONG, _INT],
    "rewire_dense_forward": [*[_POINTER] * 4, _INT, *[_POINTER] * 6, _LONG, *_RELU, _INT],
    "rewire_dense_backward": [*[_POINTER] * 7, _INT, *[_POINTER] * 5, _LONG, _INT],
    "rewire_program_tables": [_POINTER, _POINTER, _INT, _LONG, _POINTER, _LONG, _POINTER, _POINTER],
    "rewire_program": [_POINTER, _INT, *[_POINTER] * 3, _INT],
    "rewire_moments": [_POINTER, *_SIZES, _POINTER, _POINTER, _INT],
    "rewire_scale": [_POINTER, *_SIZES, *[_POINTER] * 2, *_RELU, _POINTER, _INT],
    "rewire_norm_sums": [*[_POINTER] * 3, *_SIZES, *[_POINTER] * 2, *_RELU, *[_POINTER] * 2, _INT],
    "rewire_norm_input": [*[_POINTER] * 2, *_SIZES, *[_POINTER] * 2, *_RELU, *[_POINTER] * 4, _INT],
    "rewire_norm_pool": [_POINTER, *_HALVED, *[_POINTER] * 2, *_RELU, _POINTER, _INT],
    "rewire_norm_pool_sums": [*[_POINTER] * 3, *_HALVED, *[_POINTER] * 2, *_RELU, *[_POINTER] * 2, _INT],
    "rewire_norm_pool_input": [*[_POINTER] * 2, *_HALVED, *[_POINTER] * 2, *_RELU, *[_POINTER] * 4, _INT],
    "rewire_activate": [_POINTER, _POINTER, _LONG, *_RELU, _POINTER, _INT],
    "rewire_activate_backward": [_POINTER, _POINTER, _LONG, _FLOAT, _POINTER, _INT],
    "rewire_max_pool": [*[_POINTER] * 3, _INT],
    "rewire_max_pool_backward": [*[_POINTER] * 4, _INT],
    "rewire_average_pool": [*[_POINTER] * 4, _INT],
    "rewire_average_pool_backward": [*[_POINTER] * 4, _INT],
}
REFERENCE = "reference"  # what REWIRE_ISA may also say: plain torch, no native code


def available() -> list[str]:
    """The instruction sets that were built and that this processor has, the widest last."""
    if not library("baseline").exists():
        return []
    supports = ctypes.CDLL(str(library("baseline"))).rewire_supports
    return [name for level, name in enumerate(LEVELS) if library(name).exists() and supports(level)]


@functools.cache
def load(level: str) -> ctypes.CDLL:
    """The library of one instruction set."""
    return declared(library(level))


def declared(path: Path) -> ctypes.CDLL:
    """A library with the types of its functions."""
    native = ctypes.CDLL(str(path))
    for name, arguments in _SIGNATURES.items():
        function = getattr(native, name)
        function.argtypes, function.restype = arguments, None
    native.rewire_is_sorted.argtypes, native.rewire_is_sorted.restype = [_POINTER, _INT, _LONG], _INT
    return native


def chosen() -> str:
    """The instruction set to use: what ``REWIRE_ISA`` asks for, else the widest; the reference if none was built."""
    found = available()
    asked = os.environ.get("REWIRE_ISA")
    if asked is None:
        if not found:
            _warn()
        return found[-1] if found else REFERENCE
    if asked not in (*found, REFERENCE):
        raise ValueError(f"REWIRE_ISA={asked!r} is not available here; choose from {', '.join([*found, REFERENCE])}")
    return asked


_IN_USE: list[ctypes.CDLL | None] = []  # no `functools.cache`, behind which torch.compile would look


def native() -> ctypes.CDLL | None:
    """The library in use, or ``None``: the reference serves."""
    if not _IN_USE:
        level = chosen()
        _IN_USE.append(None if level == REFERENCE else load(level))
    return _IN_USE[0]


def info() -> dict[str, object]:
    """What ``rewire.kernels.info()`` tells."""
    return {"isa": chosen(), "available": [*available(), REFERENCE], "threads": torch.get_num_threads()}


@functools.cache
def _warn() -> None:
    how = (
        "build them with `python -m rewire.kernels.build`"
        if compiler()
        else "no C++ compiler was found: install g++ or clang++, then run `python -m rewire.kernels.build`"
    )
    warnings.warn(f"the native sparse kernels are not built, so slow plain-torch ones are used; {how}", stacklevel=4)
