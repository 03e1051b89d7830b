"""The checksum of a topology is stored in checkpoints, so its values must never change."""

import pytest
import torch
from torch import nn

import rewire
from rewire.rewirer.state import checksum, checksums


def by_hand(positions):
    """With Python's integers, which have no end, wrapped to 64 bits by hand."""

    def wrapped(number):
        return (number + 2**63) % 2**64 - 2**63

    mixed = [wrapped((position + 1) * 0x9E3779B97F4A7C1) for position in positions]
    return wrapped(sum(number ^ (number >> 29) for number in mixed))


@pytest.mark.parametrize("positions", [[], [0], [12], [13], [0, 3, 13, 200], [2**31, 2**40, 2**62], list(range(500))])
def test_products_and_sums_wrap_around(positions):
    assert checksum(torch.tensor(positions, dtype=torch.int64)) == by_hand(positions)


def test_the_values_that_checkpoints_hold():
    """Written by the first version: a checkpoint of then must still be recognised."""
    assert checksum(torch.tensor([0])) == 712544677297855261
    assert checksum(torch.tensor([0, 3, 13, 200])) == -2060429412529995766
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5, start="uniform"), seed=3)
    assert rewirer.state_dict()["masks"] == [17949706761599959, -3489944538320285896]


class Layer:
    def __init__(self, positions):
        self.positions = positions

    def active(self):
        return torch.tensor(self.positions, dtype=torch.int64)


class TwoRanks:
    """What both ranks know once they have gathered their numbers; the other one's are given."""

    def __init__(self, other):
        self.other = other

    def gather(self, numbers):
        return [list(numbers), self.other]


@pytest.mark.parametrize("split", [0, 1, 3])
def test_shards_add_up_to_the_whole(split):
    large = [position for position in range(3000) if by_hand([position]) > 2**62][:4]  # their sum needs 65 bits
    for positions in (list(range(0, 400, 7)), large):
        first, second = positions[:split], positions[split:]
        assert checksums([Layer(first)], TwoRanks([by_hand(second)])) == [by_hand(positions)]
