"""Loops that change gradients between backward and the step: both stores rewire alike, or the packed one refuses."""

import pytest
import torch
from tests.loops.loops import both_stores, masks
from torch import nn

import rewire
from rewire.stores.gradient_changes import factor_between, share_scale

BATCHES = torch.randn(8, 8, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def sparse(store, every=2, method=rewire.rigl):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, rewire.sparsify(model, optimizer, method(density=0.3, every=every, until=99), store=store)


def loss(model, x):
    return model(x).square().mean()


def plain(model, optimizer, x, after=lambda gradient: None, parts=1):
    for part in x.chunk(parts):
        loss(model, part).backward()
        for parameter in model.parameters():
            after(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


def thrown_away(model, optimizer, x):
    loss(model, 9 * x).backward()
    optimizer.zero_grad()
    plain(model[2:], optimizer, torch.cat([x, x[:, :4].square()], 1))  # no two inputs alike: their gradients would tie


def one_buffer(model, optimizer, x):
    buffer = torch.empty_like(x[:4])
    for part in x.chunk(2):
        loss(model, buffer.copy_(part)).backward()
    optimizer.step()
    optimizer.zero_grad()


def penalty_on_parameters(model, optimizer, x):
    (loss(model, x) + 0.1 * sum(parameter.square().sum() for parameter in model.parameters())).backward()
    optimizer.step()
    optimizer.zero_grad()


def never_cleared(model, optimizer, x):
    loss(model, x).backward()
    optimizer.step()


def clamped_tokens(model, optimizer, x):
    """The output of a linear layer of sequences is the tensor that the kernel returns, and so are its hooks."""
    model.float()
    hidden = model[0](x.float().view(2, 4, 12))
    hidden.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    model[1:](hidden).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


LOOPS = {
    "plain": plain,
    "scaled": lambda *args: plain(*args, after=lambda grad: grad.mul_(0.3)),
    "scaled between micro-batches": lambda *args: plain(*args, after=lambda grad: grad.mul_(0.3), parts=4),
    "thrown away": thrown_away,
    "one buffer": one_buffer,
    "penalty on parameters": penalty_on_parameters,
    "never cleared": never_cleared,
    "clamped tokens": clamped_tokens,
}


@pytest.mark.parametrize("hook", [None, lambda grad: None, lambda grad: 0.1 * grad, lambda grad: grad.mul_(-0.1)])
@pytest.mark.parametrize("after", [False, True], ids=["hook", "hook after accumulation"])
@pytest.mark.parametrize("name", LOOPS)
def test_both_stores_rewire_alike(name, after, hook):
    """With hooks of the weights that change nothing or multiply, before they are accumulated or after it."""
    found = []
    for store in ("masked", "packed"):
        model, optimizer, rewirer = sparse(store, method=rewire.ggr)
        for parameter in model.parameters() if hook is not None else ():
            if after:
                parameter.register_post_accumulate_grad_hook(lambda p: _change(hook, p.grad))
            else:
                parameter.register_hook(hook)
        for x in BATCHES:
            LOOPS[name](model, optimizer, x)
        assert len(rewirer.history) == 4
        found.append(masks(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def _change(hook, grad):
    with torch.no_grad():
        changed = hook(grad.clone())
        grad.copy_(grad if changed is None else changed)


def assigned(model, optimizer, x):
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss(model, x), parameters), strict=True):
        parameter.grad = grad
    optimizer.step()
    optimizer.zero_grad()


def assigned_and_never_cleared(model, optimizer, x):
    optimizer.zero_grad = lambda: None
    assigned(model, optimizer, x)


def assigned_before_more(model, optimizer, x):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    plain(model, optimizer, x)


def combined(model, optimizer, x):
    loss(model, x).backward()
    first = [parameter.grad for parameter in model.parameters()]
    optimizer.zero_grad()
    loss(model, x + 1).backward()
    for parameter, grad in zip(model.parameters(), first, strict=True):
        parameter.grad += grad
    optimizer.step()
    optimizer.zero_grad()


def hooked(model, optimizer, x):
    hooks = [parameter.register_hook(lambda grad: grad.clamp(-1e-4, 1e-4)) for parameter in model.parameters()]
    plain(model, optimizer, x)
    for hook in hooks:
        hook.remove()


def overwritten(model, optimizer, x):
    hidden = model[:2](x)
    model[2:](hidden).square().mean().backward()
    with torch.no_grad():
        hidden.zero_()
    optimizer.step()
    optimizer.zero_grad()


REFUSED = {
    "assigned": (assigned, "gradient of 0 .* was assigned"),
    "assigned, never cleared": (assigned_and_never_cleared, "gradient of 0 .* was assigned"),
    "assigned before more": (assigned_before_more, "gradient of 0 .* was assigned"),
    "combined": (combined, "gradient of 0 .* changed after backward"),
    "hooked": (hooked, "gradient of 0 .* a hook on the weight"),
    "overwritten": (overwritten, "gradient of 2 .* was overwritten"),
    "by value": (
        lambda *args: plain(*args, after=lambda grad: grad.clamp_(-1e-3, 1e-3)),
        "gradient of 0 .* changed after backward",
    ),
    "by value, accumulated": (
        lambda *args: plain(*args, after=lambda grad: grad.clamp_(-1e-3, 1e-3), parts=2),
        "gradient of 0 .* changed after backward",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_of_which_the_backward_pass_knows_nothing_are_refused(name):
    step, message = REFUSED[name]
    model, optimizer, rewirer = sparse("packed")
    step(model, optimizer, BATCHES[0])  # no rewiring
    before = [layer.active() for layer in rewirer.layers], [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=message):
        step(model, optimizer, BATCHES[1])
    after = [layer.active() for layer in rewirer.layers], list(model.parameters())
    assert all(torch.equal(a, b) for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True))


def dead_first_layer(store, method):
    """All inputs that the first layer reads are zero, so the gradient of its weights is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rewirer = rewire.sparsify(model, optimizer, method(density=0.2, every=1, until=9, start={"0": 0.005}), store=store)
    x, other = torch.randn(16, 40), torch.randn(16, 40)
    x[:, rewirer.layers[0].active() % 40] = 0
    return model, optimizer, rewirer, (x, other)


def grown_with_scaler(store, scale):
    """How many weights each layer gets; the first has no gradient at the weights that exist."""
    model, optimizer, rewirer, (x, _) = dead_first_layer(
        store, lambda **options: rewire.ggr(growth="gradient", fraction=0.3, **options)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss(model, x)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    return rewirer.history[-1].grown


@pytest.mark.parametrize("scale", [1.0, 65536.0])
@both_stores
def test_a_layer_without_gradients_is_scaled_like_the_others(store, scale):
    expected = grown_with_scaler("masked", 1.0)
    assert all(expected)  # a first layer with gradients 65536 times as large would get all of them
    assert grown_with_scaler(store, scale) == expected


def test_a_first_micro_batch_without_gradients_counts():
    found = []
    for store in ("masked", "packed"):
        model, optimizer, _, (first, second) = dead_first_layer(store, rewire.rigl)
        loss(model, 5 * first).backward()
        loss(model, 0.1 * second).backward()
        optimizer.step()
        found.append(masks(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("method", [rewire.rigl, rewire.ggr])
@pytest.mark.parametrize("trained_again", [1, 2, 3, 4])
@pytest.mark.filterwarnings("ignore:the weight of 2 was frozen")
def test_a_layer_can_be_frozen_and_trained_again(trained_again, method):
    found = []
    for store in ("masked", "packed"):
        model, optimizer, rewirer = sparse(store, method=method)
        plain(model, optimizer, BATCHES[0])
        model[2].requires_grad_(False)
        for step, x in enumerate(BATCHES[1:]):
            if step == trained_again:
                model[2].requires_grad_(True)
            loss(model, x[:4]).backward()
            plain(model, optimizer, x[4:])
        rewirer.check()
        found.append(masks(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("after", "added_to", "factor"),
    [
        ([3.0, -6.0, 0.0], None, 1.0),
        ([0.75, -1.5, 0.0], None, 0.25),
        ([0.0, 0.0, 0.0], None, 0.0),
        ([0.75, -1.0, 0.0], None, None),
        ([0.75, -1.5, 0.1], None, None),
        ([4.0, -7.0, 1.0], [1.0, -1.0, 1.0], 1.0),
        ([2.5, -4.0, 1.0], [1.0, -1.0, 1.0], 0.5),
        ([3.0, float("inf"), 0.0], None, 1.0),
        ([4.0, -7.0, float("inf")], [1.0, -1.0, float("inf")], 1.0),  # which overflowed before
        ([1.0, 1e8, 0.0], [0.25, 1e8, 0.0], 0.25),  # the largest is lost in rounding
    ],
)
def test_a_factor_is_that_of_the_whole_layer(after, added_to, factor):
    before = torch.tensor([3.0, -6.0, 0.0])
    assert factor_between(before, torch.tensor(after), None if added_to is None else torch.tensor(added_to)) == factor
    assert factor_between(torch.zeros(3), torch.tensor([0.0, 0.1, 0.0])) is None


class Layer:
    def __init__(self, scale, is_silent=False):
        self.scale, self.is_silent, self.tells_scale = scale, is_silent, not is_silent


def test_factors_that_differ_are_mentioned():
    layers = [Layer(0.5), Layer(1.0, is_silent=True), Layer(0.5)]
    share_scale(layers)
    assert [layer.scale for layer in layers] == [0.5, 0.5, 0.5]
    layers = [Layer(0.5), Layer(1.0, is_silent=True), Layer(0.25), Layer(2.0)]
    with pytest.warns(UserWarning, match=r"different numbers, 0.25 to 2\..* 1 of them"):
        share_scale(layers)
    assert layers[1].scale == 0.5
