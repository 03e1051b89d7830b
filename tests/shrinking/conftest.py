import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """A depthwise convolution in float64 is hundreds of tiny tasks: threads would only wait for each other."""
