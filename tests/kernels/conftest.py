import pytest

from rewire.kernels import library


@pytest.fixture(params=library.available())
def isa(request):
    """Runs a test with the native kernels of every instruction set that this machine has."""
    loaded = library.load(request.param)
    with library.use(loaded):
        yield loaded
