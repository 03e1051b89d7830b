"""What cannot be removed, what is refused, and what the result keeps of the original."""

import pytest
import torch
from tests.shrinking.small import linear, same, wired
from torch import nn

from rewire import shrink
from rewire.shrinking.graph import ShrinkError
from rewire.shrinking.shrink import shrink_with_report


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


class OverTheBatch(nn.Module):
    """A sum over the examples: its constants depend on how many there are."""

    def __init__(self):
        super().__init__()
        self.first, self.last = linear([[1, 2], [0, 0]], [0, 3]), linear([[1, 2]])

    def forward(self, x):
        return self.last(self.first(x).sum(0))


def test_the_size_of_the_batch_of_the_example_does_not_matter():
    model = wired(OverTheBatch())
    small = shrink_with_report(model, torch.zeros(2, 2))[0]
    same(model, small, 2)  # a batch of five
