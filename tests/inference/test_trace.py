"""What tracing cannot record: such models are packed as they are, with a warning."""

import operator

import pytest
import torch
import torch.nn.functional as F
from tests.graphs import scattered
from tests.inference.test_fuse import Two
from torch import Tensor, nn

import rewire
from rewire.inference.graph import PackedGraph


def same(model, *inputs):
    """The same output, and the same changes of the inputs."""
    copies = [x.clone() for x in inputs]
    fast = rewire.pack(model)
    for size in (1, 2, 40):
        given, taken = ([x.clone().repeat(size, 1, 1) for x in copies] for _ in range(2))
        torch.testing.assert_close(fast(*given), model(*taken), rtol=1e-4, atol=1e-5)
        assert all(map(torch.equal, given, taken))
    return fast


def causal_by_default(net, x, mask=None):
    if mask is None:
        mask = torch.ones(5, 5).tril().bool()
    return F.scaled_dot_product_attention(net.one(x), net.two(x), x, attn_mask=mask)


class Causal(Two):
    def forward(self, x, mask=None):
        return causal_by_default(self, x, mask)


def caught(net, x):
    try:
        return net.one(x) * int(x.shape[-1])
    except Exception:
        return x


REFUSED = {
    "a set": lambda net, x: net.one(x) if x.dim() in {3} else net.two(x),
    "a dictionary": lambda net, x: {8: net.one}.get(x.shape[-1], net.two)(x),
    "isinstance": lambda net, x: net.one(x) if isinstance(x, Tensor) else net.two(x),
    "hasattr": lambda net, x: net.one(x) if hasattr(x, "last_hidden_state") else net.two(x),
    "a caught error": caught,
    "random numbers": lambda net, x: net.one(x) + 0 * torch.rand(8),
}


@pytest.mark.parametrize("how", REFUSED.values(), ids=REFUSED)
def test_what_values_decide_is_not_traced(how):
    with pytest.warns(UserWarning, match="cannot be traced"):
        same(scattered(Two(how)), torch.randn(1, 5, 8))


def test_an_argument_that_may_be_none_is_not_traced():
    model, x = scattered(Causal(None)), torch.randn(2, 5, 8)
    with pytest.warns(UserWarning, match="cannot be traced .its argument mask has the default None"):
        fast = same(model, x)
    mask = torch.ones(5, 5).bool()
    torch.testing.assert_close(fast(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


def test_hooks_and_a_forward_of_the_model_itself_are_kept():
    model = scattered(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    handle = model.register_forward_hook(lambda module, args, y: y - 1)
    with pytest.warns(UserWarning, match="cannot be traced"):
        same(model, torch.randn(2, 5, 8))
    handle.remove()
    model.forward = lambda x: x + 1
    with pytest.warns(UserWarning, match="cannot be traced"):
        same(model, torch.randn(2, 5, 8))


def test_hooks_of_blocks_see_activations():
    model, seen = scattered(nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.ReLU())), []
    model[0].register_forward_hook(lambda module, args, y: seen.append(type(y)))
    assert isinstance(same(model, torch.randn(2, 5, 8)), PackedGraph)
    assert set(seen) == {Tensor}


def aliased(net, x):
    y = net.one(x)
    alias = y
    y += net.two(x)
    return y * alias


def of_the_input(net, x):
    x += 1
    return net.one(x)


def of_a_view(net, x):
    y = net.one(x)
    view = y[:, :2]
    view += 1
    return y


@pytest.mark.parametrize("how", [aliased, of_the_input, of_a_view])
def test_augmented_assignments_keep_their_aliases(how):
    assert isinstance(same(scattered(Two(how)), torch.randn(2, 5, 8)), PackedGraph)


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ipow"])
def test_every_augmented_assignment_is_one(name):
    def changed(net, x):
        y = net.one(x)
        result = getattr(operator, name)(y, 2)
        return result, y

    assert isinstance(same(scattered(Two(changed)), torch.randn(2, 5, 8)), PackedGraph)


def test_the_example_tells_that_a_graph_is_wrong():
    """A required argument may be asked for as well, and a module may count its calls."""

    class Counting(Two):
        calls = 0

        def forward(self, x):
            Counting.calls += 1
            return self.one(x) * Counting.calls

    model, x = scattered(Counting(None)), torch.randn(2, 5, 8)
    with pytest.warns(UserWarning, match="cannot be traced .its graph computes something else"):
        rewire.pack(model, x)
    assert isinstance(rewire.pack(scattered(Two(aliased)), x), PackedGraph)
