import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewire.core import dense_ops as flat
from rewire.core.dense_ops import count, is_finite, put, take, top_where_inactive, where_true


def brute_force(dense, mask, k, floor):
    values = dense.abs().flatten().tolist()
    used = mask.flatten().tolist()
    strong = [i for i, v in enumerate(values) if not used[i] and v > 0 and v >= floor]
    return sorted(sorted(strong, key=lambda i: (-values[i], i))[:k])


@pytest.fixture(params=["contiguous", "channels_last", "bfloat16", "float64"])
def form(request):
    def change(tensor):
        if request.param == "channels_last":
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor.to(getattr(torch, request.param)) if "float" in request.param else tensor

    return change


@pytest.mark.parametrize("k", [0, 1, 7, 40, 500])
@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_the_top_of_a_dense_tensor_in_every_form(form, k, floor, monkeypatch):
    monkeypatch.setitem(flat.TILE, "cpu", 32)  # many tiles, also for a small tensor
    generator = torch.Generator().manual_seed(k)
    dense = form((torch.randn(6, 5, 4, 3, generator=generator) * 2).round() / 2)  # many ties, some zeros
    mask = torch.rand(6, 5, 4, 3, generator=generator) < 0.3
    found = top_where_inactive(dense, mask, k, floor)
    assert found.positions.tolist() == brute_force(dense, mask, k, floor)
    assert torch.equal(found.values, take(dense, found.positions).abs())


@given(st.integers(1, 3000), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_the_sampled_guess_never_changes_the_answer(k, density, seed):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(3000, generator=generator) ** 3
    dense[::7] = 50.0  # what a strided sample may only see: a guess far too high
    mask = torch.rand(3000, generator=generator) < density
    expected = brute_force(dense, mask, k, 0.0)
    guess = flat._guess
    try:
        flat._guess = lambda tensor, k: guess(tensor, k, samples=64)
        assert top_where_inactive(dense, mask, k).positions.tolist() == expected
        tiles = [(0, dense[:2000], mask[:2000]), (2000, dense[2000:], mask[2000:])]
        assert flat.top_of_tiles(tiles, k, 0.0, dense).positions.tolist() == expected
    finally:
        flat._guess = guess


def test_take_and_put_use_logical_positions_whatever_the_strides():
    plain = torch.arange(2 * 3 * 2 * 2.0).view(2, 3, 2, 2)
    other = plain.contiguous(memory_format=torch.channels_last)
    positions = torch.tensor([0, 5, 17, 23])
    assert take(other, positions).tolist() == [0, 5, 17, 23]
    put(other, positions, torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64))
    assert other.flatten()[positions].tolist() == [-1, -2, -3, -4]
    put(other, positions, 0.0)
    assert other.flatten()[positions].tolist() == [0, 0, 0, 0]


def test_counting_and_finding():
    mask = torch.tensor(np.random.default_rng(0).random((4, 3, 2, 2)) < 0.4)
    for form in (mask, mask.contiguous(memory_format=torch.channels_last)):
        assert count(form) == int(mask.sum())
        assert where_true(form).tolist() == mask.flatten().nonzero().squeeze(1).tolist()


def test_finite():
    assert is_finite(torch.full((10,), 3e38))  # their sum overflows, they do not
    assert not is_finite(torch.tensor([1.0, float("nan")]))
    assert not is_finite(torch.tensor([float("inf"), float("-inf")]))
    assert is_finite(torch.full((5000,), 60_000.0, dtype=torch.float16))
