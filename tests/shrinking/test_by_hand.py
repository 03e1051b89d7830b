"""Networks of a few neurons: what is removed and where its constant goes is written out."""

import pytest
import torch
from tests.shrinking.small import SMALL, conv, linear, same, wired
from torch import nn

from rewire import shrink


def test_a_dead_neuron_with_positive_bias_goes_into_the_next_bias():
    # Neuron 1 has no inputs: it is relu(2) = 2 for ever. 2 * 10 and 2 * 30 go into the biases of the next layer.
    model = wired(
        nn.Sequential(linear([[1, 2], [0, 0]], [0.5, 2]), nn.ReLU(), linear([[1, 10], [3, 30]], [0.25, 0]), nn.ReLU())
    )
    small = shrink(model, torch.zeros(1, 2))
    assert small[0].weight.tolist() == [[1, 2]]
    assert small[0].bias.tolist() == [0.5]
    assert small[2].weight.tolist() == [[1], [3]]
    assert small[2].bias.tolist() == [20.25, 60]
    same(model, small, 2)


def test_a_dead_neuron_with_negative_bias_is_zero_behind_relu():
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0.5, -2]), nn.ReLU(), linear([[1, 10]])))
    small = shrink(model, torch.zeros(1, 2))
    assert small[2].weight.tolist() == [[1]]
    assert small[2].bias is None  # nothing to carry: no bias is made


def test_a_bias_is_made_where_there_is_none():
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0.5, 2]), linear([[1, 10], [3, 30]])))
    small = shrink(model, torch.zeros(1, 2))
    assert small[1].bias.tolist() == [20, 60]
    same(model, small, 2)


def test_an_unused_neuron_goes_with_its_inputs():
    # Nobody reads neuron 1 of the second layer, so nobody needs neuron 0 of the first.
    model = wired(nn.Sequential(linear([[1, 1], [1, 2]]), nn.Tanh(), linear([[0, 3], [5, 0]]), linear([[7, 0]])))
    small = shrink(model, torch.zeros(1, 2))
    assert [m.weight.tolist() for m in (small[0], small[2], small[3])] == [[[1, 2]], [[3]], [[7]]]
    same(model, small, 2)


PATTERN = [[[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]]  # one input channel, 3x3


def dead_into(second):
    first = conv([[[[1.0]]], [[[0.0]]]], [0.5, 2])
    return wired(nn.Sequential(first, nn.ReLU(), second))


def test_into_an_unpadded_convolution_the_constant_is_carried():
    model = dead_into(conv([PATTERN + PATTERN], [1.0]))
    small = shrink(model, torch.zeros(1, 1, 5, 5))
    assert small[0].out_channels == small[2].in_channels == 1
    assert small[2].bias.tolist() == [1 + 2 * 45]
    same(model, small, 1, 5, 5)


def test_into_a_padded_convolution_the_channel_stays():
    model = dead_into(conv([PATTERN + PATTERN], [1.0], padding=1))
    with pytest.warns(UserWarning, match="nothing can be removed"):
        small = shrink(model, torch.zeros(1, 1, 5, 5))
    assert small[0].out_channels == 2
    same(model, small, 1, 5, 5)


def test_into_a_padded_convolution_that_uses_its_centre_only_it_is_carried():
    centre = [[[0.0, 0, 0], [0, 3, 0], [0, 0, 0]]]
    model = dead_into(conv([PATTERN + centre], [1.0], padding=1))
    small = shrink(model, torch.zeros(1, 1, 5, 5))
    assert small[2].in_channels == 1
    assert small[2].bias.tolist() == [1 + 2 * 3]
    same(model, small, 1, 5, 5)


def test_a_constant_that_is_zero_goes_through_padding():
    first = conv([[[[1.0]]], [[[0.0]]]], [0.5, -2])
    model = wired(nn.Sequential(first, nn.ReLU(), conv([PATTERN + PATTERN], [1.0], padding=1)))
    small = shrink(model, torch.zeros(1, 1, 5, 5))
    assert small[2].in_channels == 1
    assert small[2].bias.tolist() == [1]


def test_padding_that_repeats_the_border_keeps_constants_constant():
    model = dead_into(conv([PATTERN + PATTERN], [1.0], padding=1, padding_mode="replicate"))
    small = shrink(model, torch.zeros(1, 1, 5, 5))
    assert small[2].bias.tolist() == [91]
    same(model, small, 1, 5, 5)


def test_through_batch_norm_with_negative_shift():
    # (0 - 1) / sqrt(3.5 + 0.5) * 2 - 0.5 = -1.5, which leaky ReLU makes -0.15; the next layer multiplies it by 10.
    norm = nn.BatchNorm1d(2, eps=0.5).double()
    norm.weight.data, norm.bias.data = torch.tensor([[1.0, 2], [0, -0.5]], dtype=torch.float64)
    norm.running_mean, norm.running_var = torch.tensor([[0.0, 1], [0.5, 3.5]], dtype=torch.float64)
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]]), norm, nn.LeakyReLU(0.1), linear([[1, 10]], [4]))).eval()
    small = shrink(model, torch.zeros(1, 2))
    assert small[1].num_features == 1
    assert small[1].running_var.tolist() == [0.5]
    torch.testing.assert_close(small[3].bias.data, torch.tensor([2.5], dtype=torch.float64), **SMALL)
    same(model, small, 2)


class Residual(nn.Module):
    def __init__(self, first, branch, last):
        super().__init__()
        self.first, self.branch, self.last = first, branch, last

    def forward(self, x):
        x = self.first(x)
        return self.last(x + torch.relu(self.branch(x)))


def test_on_a_residual_branch_a_channel_stays_while_the_other_side_lives():
    model = wired(Residual(linear([[1, 2], [3, 4]]), linear([[1, 1], [0, 0]], [0, 5]), linear([[1, 1]], [0])))
    with pytest.warns(UserWarning, match="nothing can be removed"):
        assert shrink(model, torch.zeros(1, 2)).branch.out_features == 2


def test_on_a_residual_branch_a_channel_goes_when_both_sides_are_constant():
    # Channel 1: 3 on the stream and relu(5 + 2 * 3) on the branch, so 14 in the sum.
    model = wired(Residual(linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 0], [0, 2]], [0, 5]), linear([[1, 10]], [1])))
    small = shrink(model, torch.zeros(1, 2))
    assert small.last.weight.tolist() == [[1]]
    assert small.last.bias.tolist() == [141]
    assert small.branch.weight.tolist() == [[1]]
    same(model, small, 2)


def test_a_chain_that_dies_step_by_step():
    # Neuron 1 of layer 1 has no input; neuron 1 of layer 2 reads only it; neuron 1 of layer 3 only that.
    step = [[1, 0], [0, 2]]
    model = wired(nn.Sequential(linear([[1, 1], [0, 0]], [0, 1]), linear(step), linear(step), linear([[1, 5]])))
    small = shrink(model, torch.zeros(1, 2))
    assert [tuple(m.weight.shape) for m in small] == [(1, 2), (1, 1), (1, 1), (1, 1)]
    assert small[3].bias.tolist() == [1 * 2 * 2 * 5]
    same(model, small, 2)


def test_depthwise_and_pointwise():
    # Depthwise channel 1 has no weights: relu(0.5) = 0.5 comes out, times 4 into the pointwise bias.
    kernel = [[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]
    empty = [[0.0] * 3] * 3
    model = wired(
        nn.Sequential(
            conv([[[[1.0]]], [[[2.0]]]]),
            conv([[kernel], [empty]], [0, 0.5], groups=2, padding=1),
            nn.ReLU(),
            conv([[[[3.0]], [[4.0]]]]),
        )
    )
    small = shrink(model, torch.zeros(1, 1, 4, 4))
    assert small[0].out_channels == small[1].groups == small[1].in_channels == small[3].in_channels == 1
    assert small[3].bias.tolist() == [2]
    same(model, small, 1, 4, 4)


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = linear([[1, 2], [0, 0]], [0, 1]), linear([[0, 0], [3, 4]], [2, 0])
        self.last = linear([[1, 10, 100, 1000]], [0])

    def forward(self, x):
        return self.last(torch.cat([self.left(x), self.right(x)], dim=1))


def test_concatenation():
    model = wired(Joined())
    small = shrink(model, torch.zeros(1, 2))
    assert small.last.weight.tolist() == [[1, 1000]]
    assert small.last.bias.tolist() == [1 * 10 + 2 * 100]
    same(model, small, 2)


def test_flatten_into_linear():
    # Channel 1 is 3 at each of 4 pixels: 3 * (5 + 6 + 7 + 8) goes into the bias.
    first = conv([[[[1.0]]], [[[0.0]]]], [0, 3])
    model = wired(nn.Sequential(first, nn.Flatten(), linear([[1, 2, 3, 4, 5, 6, 7, 8]])))
    small = shrink(model, torch.zeros(1, 1, 2, 2))
    assert small[2].weight.tolist() == [[1, 2, 3, 4]]
    assert small[2].bias.tolist() == [78]
    same(model, small, 1, 2, 2)


class Fixed(nn.Module):
    """Has the size it flattens to written in its code."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv([[[[1.0]]], [[[0.0]]]], [0, 3]), conv([[[[1.0]], [[2.0]]], [[[3.0]], [[0.0]]]])
        self.last = linear([[1, 2, 3, 4, 0, 0, 0, 0]])

    def forward(self, x):
        return self.last(self.second(self.first(x)).view(-1, 8))


def test_a_size_in_the_code_stops_at_the_reshape_only():
    model = wired(Fixed())
    small = shrink(model, torch.zeros(1, 1, 2, 2))
    assert small.first.out_channels == 1
    assert small.last.in_features == 8
    same(model, small, 1, 2, 2)
