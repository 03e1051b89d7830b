"""The selection across ranks is that of a single process, for any values, ties and splits. Ranks are threads here."""

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import ListLayer, _

import rewire
from rewire.core.across_layers import mean_magnitudes
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE, total
from rewire.core.topology import ScoredPositions, merge
from rewire.core.validate import check_drop
from rewire.distributed.group import Traffic
from rewire.distributed.topk import Shards

WAIT = 20  # seconds until a missing rank is a failure


class Meeting:
    """What the ranks of a ``ThreadGroup`` share."""

    def __init__(self, size):
        self.barrier, self.said = threading.Barrier(size, timeout=WAIT), [None] * size


class ThreadGroup:
    """``rewire.distributed.group.Group`` among threads."""

    def __init__(self, meeting, index):
        self.meeting, self.index, self.size, self.traffic = meeting, index, len(meeting.said), Traffic()

    def tell(self, something):
        self.meeting.said[self.index] = something
        self.meeting.barrier.wait()
        said = list(self.meeting.said)
        self.meeting.barrier.wait()
        return said

    def gather(self, numbers):
        return [list(one) for one in self.tell(list(numbers))]

    def add(self, counts):
        return sum(self.tell(counts.clone()))


def on_ranks(size, act):
    """``act(shards, index)`` on every rank."""
    meeting, results = Meeting(size), [None] * size

    def one(index):
        try:
            results[index] = act(Shards(ThreadGroup(meeting, index)), index)
        except BaseException as error:
            results[index] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def split(top, cuts):
    """The part of a list that each rank holds; some may hold nothing."""
    edges = [0, *sorted(cuts), int(top.positions.max()) + 1 if len(top) else 1]
    edges[-1] = max(edges)
    inside = [(top.positions >= a) & (top.positions < b) for a, b in itertools.pairwise(edges)]
    return [top.where(mark) for mark in inside]


VALUES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1e-300, 0.5, 1.0, 1.0 + 2**-52, 3.0, 1e300])
LISTS = st.lists(st.lists(VALUES, min_size=0, max_size=12), min_size=1, max_size=4)


def tops_of(lists, dtype=torch.float64):
    return [ScoredPositions(torch.tensor(one, dtype=torch.float64).to(dtype), torch.arange(len(one))) for one in lists]


def joined(parts):
    return torch.cat([one.positions for one in parts]).tolist()


@settings(max_examples=40, deadline=None)
@given(LISTS, st.data(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_selections_are_those_of_one_process(lists, data, dtype):
    tops = tops_of(lists, dtype)
    size = data.draw(st.integers(2, 4))
    cuts = [data.draw(st.lists(st.integers(0, 12), min_size=size - 1, max_size=size - 1)) for _ in tops]
    parts = [split(top, cut) for top, cut in zip(tops, cuts, strict=True)]
    ks = [data.draw(st.integers(0, 14)) for _ in tops]
    k = data.draw(st.integers(0, 40))
    scales = data.draw(st.none() | st.just([1.0, 0.5, 3.0, 7.0][: len(tops)]))

    def act(shards, index):
        mine = [part[index] for part in parts]
        return shards.largest(mine, ks), shards.merge(mine, k, scales)

    results = on_ranks(size, act)
    for at, (top, wanted, whole) in enumerate(zip(tops, ks, merge(tops, k, scales), strict=True)):
        assert joined([best[at] for best, _ in results]) == top.largest(wanted).positions.tolist()
        assert joined([all_[at] for _, all_ in results]) == whole.positions.tolist()


def test_ties_go_to_the_earlier_list_and_then_to_the_earlier_rank():
    tops = tops_of([[1.0, 2.0, 1.0], [1.0, 1.0]])
    parts = [split(tops[0], [1]), split(tops[1], [1])]
    first, second = on_ranks(2, lambda shards, index: shards.merge([part[index] for part in parts], 4))
    assert [one.positions.tolist() for one in first] == [[0], [0]]
    assert [one.positions.tolist() for one in second] == [[1, 2], []]


def test_counts_over_ranks():
    assert on_ranks(3, lambda shards, index: total(shards, [index, 10])) == [[3, 30]] * 3


def test_a_mistake_that_one_rank_sees_raises_on_all_of_them():
    part = rewire.parts.Lowest()

    def check(shards, index):
        layer = Part([1.0, 1.0, 1.0], [0.0] * 3, 3 * index, 9)
        layer._active += layer.span.start
        drop = torch.tensor([9]) if index == 1 else torch.tensor([3 * index])  # rank 1 holds positions 3 to 5
        try:
            check_drop(part, [drop], [layer], 3, shards)
        except ValueError as error:
            return str(error)

    first, second, third = on_ranks(3, check)
    assert "position 9 is not one of the layer's, 3 to 5" in second
    assert first == third
    assert "for layer on rank 1: see its error there" in first


class Part(ListLayer):
    """A rank's part of a layer, whose counts are those of the whole."""

    def __init__(self, weight, momentum, start, nnz):
        super().__init__(weight, momentum=momentum)
        self.span, self.nnz = range(start, start + len(weight)), nnz


@given(st.lists(st.floats(-1e20, 1e20) | st.floats(-1e-20, 1e-20), min_size=2, max_size=20), st.integers(1, 19))
@settings(max_examples=30, deadline=None)
def test_a_mean_does_not_depend_on_who_adds_what(values, cut):
    cut = min(cut, len(values))
    whole = ListLayer([1.0] * len(values), momentum=values)

    def act(shards, index):
        mine = values[:cut] if index == 0 else values[cut:]
        return mean_magnitudes([Part([1.0] * len(mine), mine, 0, len(values))], Signal.MOMENTUM, shards)

    (alone,) = mean_magnitudes([whole], Signal.MOMENTUM, ALONE)
    assert on_ranks(2, act) == [[alone], [alone]]
    assert alone == pytest.approx(sum(map(abs, values)) / len(values), rel=1e-12, abs=0)


def test_means_by_hand():
    layers = [ListLayer([1.0, _, 1.0], momentum=[-3.0, 100.0, 1.0]), ListLayer([_, _], momentum=[1.0, 1.0])]
    assert mean_magnitudes(layers, Signal.MOMENTUM, ALONE) == [2.0, 0.0]
