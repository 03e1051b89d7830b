"""Loads the native library of the widest instruction set that this processor has, once, when it is first needed.

A library is refused if it was not built from the sources beside it, or if its functions or structures differ from the
tables in ``entry_points.py`` and ``structures.py``. A package that was installed without its sources has nothing to
compare the hash with; functions and structures are compared all the same.
"""

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rewire.kernels.build import EXTENSIONS, compiler, library_path, source_hash, sources
from rewire.kernels.entry_points import ENTRY_POINTS
from rewire.kernels.structures import STRUCTURES
from rewire.kernels.threads import thread_count

REFERENCE = "reference"  # the value of REWIRE_ISA that turns native code off: the reference implementation runs
REBUILD = "rebuild it with `pip install -e .` or `python -m rewire.kernels.build`"


class LibraryMismatchError(RuntimeError):
    """A library does not belong to this version of the package."""


def available() -> list[str]:
    """The instruction sets that were built and that this processor supports, the widest last."""
    if not library_path("baseline").exists():
        return []
    supports = load("baseline").rewire_cpu_supports
    return [
        isa
        for isa, extensions in EXTENSIONS.items()
        if library_path(isa).exists() and all(supports(name.encode()) == 1 for name in extensions)
    ]


@functools.cache
def load(isa: str) -> ctypes.CDLL:
    """The library of one instruction set."""
    return open_library(library_path(isa), isa)


def open_library(path: Path, isa: str) -> ctypes.CDLL:
    """Load a library, verify that it belongs to this package, and declare the types of its functions."""
    _load_openmp()
    library = ctypes.CDLL(str(path))
    for name in ("rewire_source_hash", "rewire_interface"):
        if not hasattr(library, name):
            raise LibraryMismatchError(f"{path} was built from another version of the sources: {REBUILD}")
    for name, entry in ENTRY_POINTS.items():
        if function := getattr(library, name, None):
            function.argtypes, function.restype = entry.arguments, entry.result
    if sources() and library.rewire_source_hash().decode() != source_hash(isa):
        raise LibraryMismatchError(f"{path} was not built from the sources beside it: {REBUILD}")
    _verify_interface(path, library.rewire_interface().decode().splitlines())
    return library


@functools.cache
def _load_openmp() -> None:
    """Make an OpenMP runtime visible to the libraries, which name none: torch's, else the system's.

    torch has usually made its own visible already. Sharing it means one pool of threads: two pools would compete for
    the processors, since the threads of one keep spinning for a while after their work is done.
    """
    if hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return
    for name in [*map(str, Path(torch.__file__).parent.glob("lib/libgomp*.so*")), "libgomp.so.1"]:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


def interface() -> set[str]:
    """The entry points and structures of this package, as native/interface.cpp writes them."""
    functions = {f"function {name} {entry.signature}" for name, entry in ENTRY_POINTS.items()}
    return functions | {_description(structure) for structure in STRUCTURES}


def _description(structure: type[ctypes.Structure]) -> str:
    fields = [(name, getattr(structure, name)) for name, *_ in structure._fields_]
    placed = " ".join(f"{name}:{field.offset}:{field.size}" for name, field in fields)
    return f"struct {structure.__name__} {ctypes.sizeof(structure)} {placed}"


def _verify_interface(path: Path, reported: list[str]) -> None:
    differing = {tuple(line.split()[:2]) for line in interface() ^ set(reported)}
    if differing:
        names = ", ".join(" ".join(words) for words in sorted(differing))
        raise LibraryMismatchError(f"{path} and this package differ in {names}: {REBUILD}")


def chosen() -> str:
    """The instruction set to use: what ``REWIRE_ISA`` asks for, else the widest; the reference if none was built."""
    asked = os.environ.get("REWIRE_ISA")
    if asked == REFERENCE:
        return REFERENCE
    isas = available()
    if asked is None:
        if not isas:
            _warn()
        return isas[-1] if isas else REFERENCE
    if asked not in isas:
        raise ValueError(f"REWIRE_ISA={asked!r} is not available here; choose from {', '.join([*isas, REFERENCE])}")
    return asked


_IN_USE: list[Any] = []  # the library or None; no `functools.cache`, which torch.compile would look into


def native() -> Any:
    """The library in use, or ``None`` if the reference implementation runs."""
    if not _IN_USE:
        isa = chosen()
        _IN_USE.append(None if isa == REFERENCE else load(isa))
    return _IN_USE[0]


@contextlib.contextmanager
def use(library: Any) -> Iterator[None]:
    """Run with another library (``load(isa)``, or an object around one), or with ``None`` for the reference."""
    before = _IN_USE[:]
    _IN_USE[:] = [library]
    try:
        yield
    finally:
        _IN_USE[:] = before


def info() -> dict[str, object]:
    """What ``rewire.kernels.info()`` returns."""
    return {"isa": chosen(), "available": [*available(), REFERENCE], "threads": thread_count()}


@functools.cache
def _warn() -> None:
    how = (
        "build them with `python -m rewire.kernels.build`"
        if compiler()
        else "no C++ compiler was found: install g++ or clang++, then run `python -m rewire.kernels.build`"
    )
    warnings.warn(f"the native sparse kernels are not built, so slow plain-torch ones are used; {how}", stacklevel=4)
