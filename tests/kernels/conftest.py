import functools
import os

import pytest

from rewire.kernels import library
from rewire.kernels.entry_points import ENTRY_POINTS

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
AT_LOAD = {"rewire_cpu_supports", "rewire_source_hash", "rewire_interface"}  # called before any test
_called = set()  # (instruction set, entry point)


@pytest.fixture(params=library.available())
def isa(request):
    """Runs a test with the native kernels of every instruction set that this machine has."""
    loaded = library.load(request.param)
    with library.use(loaded):
        yield loaded


@pytest.fixture(scope="session", autouse=SANITIZED)
def _note_calls():
    """Under the sanitizers: note which entry points the tests call."""
    for name in library.available():
        loaded = library.load(name)
        for entry_point in ENTRY_POINTS:
            setattr(loaded, entry_point, _noting(getattr(loaded, entry_point), (name, entry_point)))


def _noting(function, key):
    @functools.wraps(function, assigned=())
    def call(*args):
        _called.add(key)
        return function(*args)

    return call


def pytest_sessionfinish(session):
    """``make sanitize`` fails if its tests leave out an entry point."""
    if not SANITIZED or session.config.args != ["tests/kernels"]:
        return
    expected = {(name, entry_point) for name in library.available() for entry_point in ENTRY_POINTS.keys() - AT_LOAD}
    missing = sorted(expected - _called)
    if missing:
        print(f"\nno selected test calls {missing}: name one test_native_..., so that make sanitize runs it")
        session.exitstatus = 1
