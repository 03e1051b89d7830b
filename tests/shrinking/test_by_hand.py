"""Networks of a few neurons: what is removed and where its constant goes is written out."""

import pytest
import torch
from torch import nn

from rewire import shrink
from rewire.shrinking.graph import ShrinkError
from rewire.shrinking.shrink import shrink_with_report

SMALL = {"atol": 1e-12, "rtol": 1e-12}


def linear(weight, bias=None):
    weight = torch.tensor(weight, dtype=torch.float64)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    made.weight.data = weight
    if bias is not None:
        made.bias.data = torch.tensor(bias, dtype=torch.float64)
    return made


def conv(weight, bias=None, **options):
    weight = torch.tensor(weight, dtype=torch.float64)
    groups = options.get("groups", 1)
    made = nn.Conv2d(weight.shape[1] * groups, weight.shape[0], weight.shape[2:], bias=bias is not None, **options)
    made = made.double()
    made.weight.data = weight
    if bias is not None:
        made.bias.data = torch.tensor(bias, dtype=torch.float64)
    return made


def wired(model):
    """Masks where the weights of these small networks are: nothing in them is zero by accident."""
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    for module in layers:
        module.register_buffer("weight_mask", module.weight != 0)
    return model


def same(model, small, *shape):
    x = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(small.eval()(x), model.eval()(x), **SMALL)


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
    # (0 - 1) / sqrt(4) * 2 - 0.5 = -1.5, which leaky ReLU makes -0.15; the next layer multiplies it by 10.
    norm = nn.BatchNorm1d(2, eps=0.0).double()
    norm.weight.data, norm.bias.data = torch.tensor([[1.0, 2], [0, -0.5]], dtype=torch.float64)
    norm.running_mean, norm.running_var = torch.tensor([[0.0, 1], [1, 4]], dtype=torch.float64)
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]]), norm, nn.LeakyReLU(0.1), linear([[1, 10]], [4]))).eval()
    small = shrink(model, torch.zeros(1, 2))
    assert small[1].num_features == 1
    assert small[1].running_var.tolist() == [1]
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


def test_a_dead_layer_is_reported_and_keeps_one_channel():
    model = wired(nn.Sequential(linear([[1, 2], [3, 4]]), linear([[0, 0], [0, 0]], [5, 7]), linear([[1, 2]], [1])))
    with pytest.warns(UserWarning, match="no signal passes 0, 1, 2"):
        small = shrink(model, torch.zeros(1, 2))
    assert [tuple(m.weight.shape) for m in small] == [(1, 2), (1, 1), (1, 1)]
    assert small[0].weight_mask.sum() == 0  # nobody reads it
    assert small(torch.randn(3, 2, dtype=torch.float64)).tolist() == [[20], [20], [20]]
    again, report = shrink_with_report(small, torch.zeros(1, 2))
    assert report.before == report.after
    assert [m.weight.tolist() for m in again] == [m.weight.tolist() for m in small]


def test_a_shared_layer_stays_as_it_is():
    shared = linear([[1, 2], [0, 0]], [0, 3])
    model = wired(nn.Sequential(shared, nn.ReLU(), shared, linear([[1, 0]])))
    small, report = shrink_with_report(model, torch.zeros(1, 2))
    assert report.layers[0] == ("3", (1, 2), (1, 2))
    same(model, small, 2)


def test_what_mixes_channels_is_left_alone():
    model = wired(
        nn.Sequential(linear([[1, 2], [0, 0]], [0, 3]), nn.LayerNorm(2, dtype=torch.float64), linear([[1, 2]]))
    )
    assert shrink_with_report(model, torch.zeros(1, 2))[0][0].out_features == 2


def test_a_topology_can_be_given():
    model = nn.Sequential(linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 2]]))
    with pytest.warns(UserWarning, match="nothing can be removed"):
        assert shrink(model, torch.zeros(1, 2))[0].out_features == 2  # zeros alone say nothing
    assert shrink(model, torch.zeros(1, 2), topology={"0": model[0].weight != 0})[0].out_features == 1
    with pytest.raises(ValueError, match=r"topology\['0'\] is of shape \(2,\), the model has \(2, 2\)"):
        shrink(model, torch.zeros(1, 2), topology={"0": torch.ones(2)})


def test_types_modes_and_masks_are_those_of_the_original():
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]], [0.5, 2]), nn.ReLU(), linear([[1, 10], [3, 30]]))).float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = shrink(model, torch.zeros(1, 2))
    assert small.training
    assert {p.dtype for p in small.parameters()} == {torch.float32}
    assert small[2].weight_mask.tolist() == [[True], [True]]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert "0.weight_mask" not in shrink(model, torch.zeros(1, 2), masks=False).state_dict()


def test_a_weight_outside_its_mask_is_refused():
    model = wired(nn.Sequential(linear([[1, 2], [0, 0]]), linear([[1, 2]])))
    model[0].weight.data[1, 1] = 1
    with pytest.raises(ShrinkError, match=r"0.weight has values where its mask says"):
        shrink(model, torch.zeros(1, 2))


def test_what_cannot_be_traced_is_refused_in_a_sentence():
    class Branches(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ShrinkError, match=r"torch.export cannot trace Branches"):
        shrink(Branches(), torch.zeros(1, 2))


class Stateful(nn.Module):
    """Its code depends on a size in a way that the graph does not show."""

    def __init__(self):
        super().__init__()
        self.first, self.last = linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 2]])

    def forward(self, x):
        return self.last(self.first(x)) * self.first.out_features


def test_a_difference_is_an_error():
    with pytest.raises(ShrinkError, match="differs from the original by"):
        shrink(wired(Stateful()), torch.ones(1, 2))
