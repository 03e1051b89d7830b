"""Every method with every optimizer and precision: what must hold after each step of an ordinary loop."""

import pytest
import torch
from tests.networks import OPTIMIZERS, network_for, train

import rewire
from rewire.stores.optimizer.state import state_tensors


def allowed(method, step, total):
    """How many weights a network may have: one number, or with even fan-ins less than a round of a layer fewer."""
    budget = round(method.density(step) * total)
    return range(budget if method.constraint is None else budget - 11, budget + 1)


class Watch:
    """Checks the invariants after each step."""

    def __init__(self, rewirer, optimizer):
        self.rewirer, self.optimizer = rewirer, optimizer
        self.masks = self.now()
        self.seen = 0

    def now(self):
        return [layer.mask.clone() for layer in self.rewirer.layers]

    def __call__(self, _step):
        rewirer, masks = self.rewirer, self.now()
        total = sum(layer.shape.numel() for layer in rewirer.layers)
        rewired = len(rewirer.history) > self.seen
        self.seen = len(rewirer.history)
        rewirer.check()
        if rewired:
            record = rewirer.history[-1]
            assert rewirer.nnz in allowed(rewirer.method, record.step, total)
        for i, layer in enumerate(rewirer.layers):
            before, after = self.masks[i], masks[i]
            assert int(after.sum()) == layer.nnz >= 1
            assert not (layer.parameter * ~after).any()
            if not rewired:
                assert torch.equal(before, after)
            else:
                assert int(before.sum()) - record.dropped[i] + record.grown[i] == layer.nnz
                lost, born = before & ~after, after & ~before
                assert int(lost.sum()) == record.dropped[i] - record.regrown[i]
                assert int(born.sum()) == record.grown[i] - record.regrown[i]
                assert (layer.parameter[born].abs() == torch.tensor(1e-10)).all()
            for state in state_tensors(self.optimizer, layer.parameter):
                assert not (state * ~after).any()
                assert not rewired or not state[born].any()
        self.masks = masks


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16-autocast"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_invariants(name, optimizer, autocast):
    model, shape = network_for(name)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = rewire.METHODS[name](density=0.3, every=4, until=16, fraction=0.3)
    rewirer = rewire.sparsify(model, optimizer, method)
    losses = train(model, optimizer, 18, shape=shape, autocast=autocast, after=Watch(rewirer, optimizer))
    assert all(torch.isfinite(torch.tensor(losses)))
    assert bool(rewirer.history) == (name != "static")
    assert rewirer.nnz in allowed(method, 18, sum(layer.shape.numel() for layer in rewirer.layers))
