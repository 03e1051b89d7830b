import pytest
import torch


@pytest.fixture
def one_thread():
    """So small networks only lose time by sharing them out; threads are tested with the kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
