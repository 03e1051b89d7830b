import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """A depthwise convolution in float64 is hundreds of tiny tasks: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
