"""Every method that the packed store takes, with every optimizer: what must hold after each step of a loop."""

import pytest
import torch
from tests.conformance.test_methods import allowed
from tests.networks import OPTIMIZERS, network_for, train

import rewire
from rewire.core.layer import Signal
from rewire.stores.packed_layer import PackedLayer

PACKABLE = [name for name in rewire.METHODS if name != "snfs"]

pytestmark = pytest.mark.usefixtures("one_thread")


class Watch:
    """Checks the invariants after each step."""

    def __init__(self, rewirer, optimizer):
        self.rewirer, self.optimizer = rewirer, optimizer
        self.seen, self.before = 0, self.now()
        self.total = sum(layer.shape.numel() for layer in rewirer.layers)

    def now(self):
        return [layer.active().clone() for layer in self.rewirer.layers]

    def __call__(self, _step):
        rewirer, after = self.rewirer, self.now()
        rewired = len(rewirer.history) > self.seen
        self.seen = len(rewirer.history)
        rewirer.check()
        if rewired:
            assert rewirer.nnz in allowed(rewirer.method, rewirer.history[-1].step, self.total)
        for i, layer in enumerate(rewirer.layers):
            assert isinstance(layer, PackedLayer)
            assert 1 <= layer.nnz == len(after[i]) == len(layer.parameter)
            assert (after[i].diff() > 0).all()  # sorted, none twice
            assert 0 <= after[i][0] <= after[i][-1] < layer.shape.numel()
            born = ~torch.isin(after[i], self.before[i])
            lost = ~torch.isin(self.before[i], after[i])
            self.moved(layer, rewirer.history[-1] if rewired else None, i, born, lost)
        self.before = after

    def moved(self, layer, record, i, born, lost):
        assert int(lost.sum()) == (record.dropped[i] - record.regrown[i] if record else 0)
        assert int(born.sum()) == (record.grown[i] - record.regrown[i] if record else 0)
        assert (layer.read(Signal.WEIGHT)[born].abs() == torch.tensor(1e-10)).all()
        for key, state in self.optimizer.state[layer.parameter].items():
            if key != "step" and state is not None:
                assert state.shape == (layer.nnz,)
                assert not state[born].any()


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16-autocast"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", PACKABLE)
def test_invariants(name, optimizer, autocast):
    model, shape = network_for(name)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = rewire.METHODS[name](density=0.3, every=4, until=16, fraction=0.3)
    rewirer = rewire.sparsify(model, optimizer, method, store="packed")
    losses = train(model, optimizer, 18, shape=shape, autocast=autocast, after=Watch(rewirer, optimizer))
    assert all(torch.isfinite(torch.tensor(losses)))
    assert bool(rewirer.history) == (name != "static")
    assert rewirer.nnz in allowed(method, 18, sum(layer.shape.numel() for layer in rewirer.layers))
