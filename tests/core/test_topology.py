import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewire.core.topology import ScoredPositions, merge, sample_inactive, topk_mask
from rewire.parts.apportion import apportion

# --- apportion ---------------------------------------------------------------------------------------------------


def test_apportion_gives_the_ones_that_are_left_to_the_largest_remainders():
    # Shares of 10: 1.67, 3.33, 5.0. Whole parts 1, 3, 5; the one that is left goes to .67.
    assert apportion(10, [1, 2, 3], [10, 10, 10]) == [2, 3, 5]


def test_apportion_pins_what_exceeds_its_cap_and_divides_the_rest_anew():
    # Shares 8, 1, 1 -> the first is pinned at 4; the other 6 are divided 3, 3.
    assert apportion(10, [8, 1, 1], [4, 10, 10]) == [4, 3, 3]


def test_apportion_raises_what_is_below_its_floor_at_the_cost_of_the_others():
    assert apportion(10, [98, 1, 1], [10, 10, 10], [1, 2, 2]) == [6, 2, 2]


def test_apportion_without_weights_goes_by_room():
    assert apportion(3, [0, 0], [2, 4]) == [1, 2]


def test_apportion_refuses_the_impossible():
    with pytest.raises(ValueError, match="cannot divide 5"):
        apportion(5, [1, 1], [2, 2])


@given(st.data())
def test_apportion_sums_exactly_respects_bounds_and_is_proportional(data):
    n = data.draw(st.integers(1, 8))
    caps = data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    floors = [data.draw(st.integers(0, cap)) for cap in caps]
    weights = data.draw(st.lists(st.floats(0, 1e6) | st.integers(0, 100), min_size=n, max_size=n))
    total = data.draw(st.integers(sum(floors), sum(caps)))
    parts = apportion(total, weights, caps, floors)
    assert sum(parts) == total
    assert all(low <= part <= cap for low, part, cap in zip(floors, parts, caps, strict=True))
    free = [i for i in range(n) if floors[i] < parts[i] < caps[i]]
    for i in free:  # between free parts, the order of the weights is kept up to rounding by one
        for j in free:
            if weights[i] >= weights[j] > 0:
                assert parts[i] >= parts[j] - 1


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6, unique=True), st.randoms())
def test_apportion_does_not_depend_on_the_order(weights, random):
    caps = [w * 3 for w in weights]
    total = sum(weights) * 2 // 3
    parts = dict(zip(weights, apportion(total, weights, caps), strict=True))
    order = random.sample(range(len(weights)), len(weights))
    again = apportion(total, [weights[i] for i in order], [caps[i] for i in order])
    shares = [total * w / sum(weights) for w in weights]
    remainders = [round(s % 1, 9) for s in shares]
    if len(set(remainders)) == len(remainders):  # equal remainders are a tie, which the order decides
        assert [parts[weights[i]] for i in order] == again


# --- top and merge -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-4, 4), max_size=30), st.integers(0, 35), st.sampled_from([torch.float32, torch.bfloat16]))
def test_top_equals_a_sort_with_ties_in_order(values, k, dtype):
    chosen = topk_mask(torch.tensor(values, dtype=dtype), k)
    expected = sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k])
    assert chosen.nonzero().squeeze(1).tolist() == expected


def test_top_agrees_with_torch_where_there_are_no_ties():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for k in (1, 10, 999, 1000):
        expected = torch.zeros(1000, dtype=torch.bool)
        expected[torch.topk(values, k).indices] = True  # no ties among normal draws
        assert torch.equal(topk_mask(values, k), expected)
        assert torch.equal(topk_mask(values.half(), k).sum(), torch.tensor(k))  # the path for other types


@given(st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=5), st.integers(0, 20))
def test_merge_equals_one_global_sort_with_ties_by_list_then_position(lists, k):
    tops = [ScoredPositions(torch.tensor(v, dtype=torch.float32), torch.arange(len(v)) * 2) for v in lists]
    everything = [(-value, i, 2 * j) for i, values in enumerate(lists) for j, value in enumerate(values)]
    expected = sorted(everything)[:k]
    for i, one in enumerate(merge(tops, k)):
        assert one.positions.tolist() == sorted(p for _, owner, p in expected if owner == i)


def test_merge_compares_scaled_values_but_keeps_the_raw_ones():
    a = ScoredPositions(torch.tensor([10.0, 8.0]), torch.tensor([0, 1]))
    b = ScoredPositions(torch.tensor([1.0]), torch.tensor([0]))
    first, second = merge([a, b], 2, scales=[10.0, 0.5])  # 1.0, 0.8 against 2.0
    assert first.values.tolist() == [10.0]
    assert second.values.tolist() == [1.0]


# --- sampling ----------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 59)), st.data())
def test_sampled_positions_are_distinct_sorted_and_inactive(active, data):
    k = data.draw(st.integers(0, 60 - len(active)))
    drawn = sample_inactive(torch.tensor(sorted(active), dtype=torch.int64), 60, k, torch.Generator().manual_seed(1))
    assert len(drawn) == k
    assert drawn.tolist() == sorted(set(drawn.tolist()) - active)
    assert all(0 <= p < 60 for p in drawn.tolist())


def test_sampling_is_uniform_over_the_inactive():
    generator = torch.Generator().manual_seed(0)
    active = torch.tensor([0, 3, 4, 40])
    counts = torch.zeros(50)
    for _ in range(4000):
        counts[sample_inactive(active, 50, 5, generator)] += 1
    assert counts[active].sum() == 0
    inactive = torch.ones(50, dtype=torch.bool)
    inactive[active] = False
    expected = 4000 * 5 / 46
    assert (counts[inactive] - expected).abs().max() < 5 * expected**0.5


def test_more_than_there_is_cannot_be_sampled():
    with pytest.raises(ValueError, match="cannot draw 3 distinct positions out of 2"):
        sample_inactive(torch.tensor([0, 1]), 4, 3, torch.Generator())
