"""Optimizers as they are found in the wild: both stores train alike, and the topology is exact after every step."""

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import STORES, batch, dense, masks
from tests.networks import mlp
from torch import nn

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")


class Lion(torch.optim.Optimizer):
    """Moves every weight by the sign of an interpolated momentum."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.lerp(p.grad, 1 - group["betas"][0]).sign_(), alpha=-group["lr"])
                average.lerp_(p.grad, 1 - group["betas"][1])


class SAM(torch.optim.Optimizer):
    """Steps with the gradient at the worst point nearby; two forward and backward passes for each step."""

    def __init__(self, params, rho=0.05, **settings):
        super().__init__(params, {"rho": rho, **settings})
        self.base_optimizer = torch.optim.SGD(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    def trained(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for p in self.trained()]).norm()
        for p in self.trained():
            self.state[p]["moved"] = p.grad * (self.param_groups[0]["rho"] / norm)
            p.add_(self.state[p]["moved"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.trained():
            p.sub_(self.state[p].pop("moved"))
        self.base_optimizer.step()
        self.zero_grad()


class ScheduleFree(torch.optim.Optimizer):
    """Trains at an interpolation of fast weights and their average, and overwrites gradients on the way."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            share = 1 / group["k"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault("z", p.clone())
                p.grad.mul_(group["lr"]).add_(p, alpha=1e-4)  # a step with weight decay, in the gradient's memory
                p.lerp_(z, share).add_(p.grad, alpha=group["beta"] * (1 - share) - 1)
                z.sub_(p.grad)


class Rotated(torch.optim.Optimizer):
    """Keeps second moments in a basis of its own, as SOAP does: their entries belong to no single weight."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["bases"] = [torch.linalg.qr(torch.randn(n, n, dtype=p.dtype))[0] for n in p.shape]
                state["exp_avg_sq"] = torch.zeros_like(p)
            left, right = state["bases"]
            rotated = left.T @ p.grad @ right
            state["exp_avg_sq"].lerp_(rotated.square(), 0.1)
            p.sub_(left @ (rotated / (state["exp_avg_sq"].sqrt() + 1e-8)) @ right.T, alpha=0.01)
            self.kept = state["exp_avg_sq"].clone()


OPTIMIZERS = {
    "lion": Lion,
    "schedule-free": ScheduleFree,
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def sparse_with(build, store, method=None):
    model = mlp(dtype=torch.float64)
    optimizer = build(model.parameters())
    method = method or rewire.ggr(density=0.3, every=3, until=100, fraction=0.4)
    return model, optimizer, rewire.sparsify(model, optimizer, method, store=store)


def assert_alike(found):
    (one, history), (other, other_history) = found
    assert history == other_history
    assert len(history) >= 3
    assert all(torch.equal(a, b) for a, b in zip(masks(one), masks(other), strict=True))
    for a, b in zip(dense(one), dense(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_both_stores_train_alike(name):
    found = []
    for store in STORES:
        model, optimizer, rewirer = sparse_with(OPTIMIZERS[name], store)
        for step in range(11):
            x, y = batch(step)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            rewirer.check()
        found.append((model, rewirer.history))
    assert_alike(found)


def test_sam_perturbs_only_weights_that_exist():
    """The method ranks random positions: at its rewirings too, only gradients of active weights are kept."""
    found = []
    for store in STORES:
        method = rewire.set_(density=0.3, every=3, until=100, fraction=0.4)
        model, optimizer, rewirer = sparse_with(lambda p: SAM(p, lr=0.1, momentum=0.9), store, method)
        for step in range(11):
            x, y = batch(step)
            F.cross_entropy(model(x), y).backward()
            optimizer.first_step()
            for module in model:
                mask = module._buffers.get("weight_mask")
                assert mask is None or not module.weight[~mask].any()
            F.cross_entropy(model(x), y).backward()
            optimizer.second_step()
            rewirer.check()
        found.append((model, rewirer.history))
    assert_alike(found)


@pytest.mark.parametrize("store", STORES)
def test_sam_with_a_method_that_ranks_gradients_keeps_the_topology(store):
    model, optimizer, rewirer = sparse_with(lambda p: SAM(p, lr=0.1, momentum=0.9), store)
    for step in range(11):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        rewirer.check()
    assert len(rewirer.history) == 3


def test_muon_moves_no_weight_that_does_not_exist():
    model = mlp()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]
    rewirer = rewire.sparsify(model, optimizers, rewire.ggr(density=0.3, every=3, until=100))
    for step in range(8):
        x, y = batch(step, dtype=torch.float32)
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        rewirer.check()
    assert len(rewirer.history) == 2


def test_state_in_another_basis_is_left_alone():
    model = mlp()
    optimizer = Rotated([model[0].weight], {})
    exclude = [name for name, module in model.named_children() if isinstance(module, nn.Linear) and name != "0"]
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.3), exclude=exclude)
    for step in range(3):
        x, y = batch(step, dtype=torch.float32)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        (layer,) = rewirer.layers
        assert not layer.parameter[~layer.mask].any()
        assert torch.equal(optimizer.state[layer.parameter]["exp_avg_sq"], optimizer.kept)
