import pytest
import torch
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine must not fail a test
settings.load_profile("untimed")


@pytest.fixture
def one_thread():
    """So small networks only lose time by sharing them out; threads are tested with the kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
