"""Packed linear layers of sequences: activation functions behind a layer, autocast, rewirings."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from tests.nn.both_stores import both_stores, gradients, packed_layers, plan_kinds, same_gradients
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rewire
from rewire.kernels import library
from rewire.kernels.batch.linear_plan import LinearPlan
from rewire.kernels.batch.plan import Plan
from rewire.nn.packed import pack_module

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


class Block(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 24, bias=False)
        self.mlp = nn.Sequential(nn.Linear(24, 50), activation, nn.Linear(50, 24))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return (x + self.mlp(x + self.out(F.scaled_dot_product_attention(q, k, v)))).mean(1)


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh()], ids=str
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_block_computes_what_the_masked_one_does(activation, dtype, tolerance):
    torch.manual_seed(1)
    models, _ = both_stores(Block(activation).to(dtype))
    x = torch.randn(3, 13, 24, dtype=dtype)
    outputs = {store: model(x) for store, model in models.items()}
    torch.testing.assert_close(outputs["packed"], outputs["masked"], rtol=tolerance, atol=tolerance)
    for output in outputs.values():
        output.square().sum().backward()
    same_gradients(models, 10 * tolerance)


def test_sequences_are_read_as_they_are_and_batches_of_vectors_stay_batch_innermost():
    layer = both_stores(nn.Sequential(nn.Linear(8, 6)))[0]["packed"][0]
    layer(torch.randn(16, 8))
    assert plan_kinds(layer) == {Plan}
    y = layer(torch.randn(2, 5, 8))
    assert plan_kinds(layer) == {Plan, LinearPlan}
    assert y.is_contiguous()
    assert layer.double()(torch.randn(2, 5, 8, dtype=torch.float64)).is_contiguous()
    layer.float()
    assert layer(torch.randn(2, 0, 8)).shape == (2, 0, 6)
    assert layer(torch.randn(8)).shape == (6,)


def test_hooks_on_an_activation_function_still_see_it():
    model = both_stores(nn.Sequential(nn.Linear(8, 6), nn.GELU()))[0]["packed"]
    seen = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    y = model(torch.randn(2, 5, 8))
    assert torch.equal(seen[0][1], y)
    torch.testing.assert_close(F.gelu(seen[0][0]), y)


def test_nothing_dense_is_allocated():
    """A weight of 2^36 elements: 256 GB if anything made it dense."""
    with torch.device("meta"):
        layer = nn.Linear(1 << 18, 1 << 18, bias=False)
    positions = torch.arange(1 << 10) * ((1 << 26) + 3)
    pack_module(layer, positions, torch.ones(1 << 10))
    x = torch.randn(2, 3, 1 << 18, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    rows, columns = positions >> 18, positions % (1 << 18)
    torch.testing.assert_close(y.detach(), torch.zeros_like(y).index_add(2, rows, x.detach()[..., columns]))
    torch.testing.assert_close(layer.weight_values.grad, x.detach()[..., columns].sum((0, 1)))


class NewTensors(TorchDispatchMode):
    """Collects the shapes of all tensors with memory of their own that torch operations return."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        known = {one.untyped_storage().data_ptr() for one in tensors}
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in known:
                self.shapes.append((str(func), tuple(one.shape)))
        return result


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(24, 50), nn.Linear(24, 50), nn.Linear(50, 24, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("shape", [(5, 7, 24), (2, 70, 24), (1, 2, 24)])
@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(24, 50), nn.GELU(), nn.Linear(50, 24)),
        SwiGlu(),
        Attention(),
        nn.TransformerEncoderLayer(24, 2, 50, dropout=0, batch_first=True),
        nn.Sequential(transformers.pytorch_utils.Conv1D(50, 24), nn.ReLU(), transformers.pytorch_utils.Conv1D(24, 50)),
    ],
    ids=["mlp", "swiglu", "attention", "encoder", "conv1d"],
)
def test_no_weight_is_made_dense_and_no_activation_is_transposed(model, shape):
    """Of all that torch allocates in a step, nothing has the size of a dense weight, or images of one pixel."""
    models, _ = both_stores(model)
    packed, x = models["packed"], torch.randn(shape, requires_grad=True)
    sizes = {layer.dense_shape.numel() for layer in packed_layers(packed).values()}
    assert not sizes & {x.numel(), 2 * x.numel(), 3 * x.numel(), x.numel() // 24 * 50}  # a size tells what it is
    packed(x).square().mean().backward()  # builds the index tables
    with NewTensors() as training:
        packed(x).square().mean().backward()
    with torch.no_grad(), NewTensors() as evaluation:
        packed.eval()(x)
    packed.train()
    for func, made in training.shapes + evaluation.shapes:
        assert math.prod(made) not in sizes, f"{func} made {made}"
        assert made[:2] != (1, 1) or len(made) != 4, f"{func} transposed an activation: {made}"


# ---- autocast


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Block(nn.GELU()), (3, 13, 24)),
        (nn.Sequential(nn.Linear(24, 30), nn.ReLU(), nn.Linear(30, 7)), (20, 24)),
        (nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3)), (4, 3, 9, 9)),
        (nn.Sequential(nn.Conv1d(3, 8, 3), nn.SiLU(), nn.Conv1d(8, 5, 1)), (4, 3, 9)),
    ],
    ids=["block", "mlp", "convolutions", "conv1d"],
)
def test_autocast_returns_its_type_and_stays_close_to_float32(model, shape, autocast):
    torch.manual_seed(0)
    models, _ = both_stores(model)
    models["float32"] = copy.deepcopy(models["packed"])
    x = torch.randn(shape)
    outputs = {}
    for name, one in models.items():
        with torch.autocast("cpu", autocast, enabled=name != "float32"):
            outputs[name] = one(x)
        outputs[name].float().square().sum().backward()
    assert outputs["packed"].dtype == outputs["masked"].dtype
    scale = float(outputs["float32"].detach().abs().max())
    error = {name: float((y.float() - outputs["float32"]).detach().abs().max()) / scale for name, y in outputs.items()}
    assert 0 < error["packed"] < max(2 * error["masked"], 2**-7)
    assert all(parameter.grad.dtype == torch.float32 for parameter in models["packed"].parameters())
    precise, packed = gradients(models["float32"]), gradients(models["packed"])
    for name, grad in precise.items():
        torch.testing.assert_close(packed[name], grad, rtol=0, atol=0.05 * max(float(grad.abs().max()), 1e-2))


def test_autocast_reaches_the_layer_itself():
    layer = both_stores(nn.Sequential(nn.Linear(8, 6)))[0]["packed"]
    x = torch.randn(2, 5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == layer(x.bfloat16()).dtype == layer(x[0]).dtype == torch.bfloat16
        assert torch.autograd.grad(layer(x).float().sum(), x)[0].dtype == torch.float32
    assert layer(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.double()(x.double()).dtype == torch.float64  # autocast leaves float64 alone


def test_a_rewiring_under_autocast_ranks_gradients_in_float32():
    torch.manual_seed(0)
    method = rewire.rigl(density=0.3, every=2, until=100)
    models, rewirers = both_stores(nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 6)), method)
    model, rewirer = models["packed"], rewirers["packed"]
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 7, 8)).float().square().mean()
        loss.backward()
        rewirer.store.optimizer.step()
        rewirer.store.optimizer.zero_grad()
    assert rewirer.history
    assert sum(len(layer.weight_values) for layer in packed_layers(model).values()) == round(0.3 * 160) + round(
        0.3 * 120
    )


# ---- rewirings


@pytest.mark.parametrize("build", [lambda: nn.Linear(10, 14), lambda: transformers.pytorch_utils.Conv1D(14, 10)])
def test_rewirings_of_sequences_make_the_same_edits_as_masked(build):
    torch.manual_seed(0)
    method = rewire.rigl(density=0.3, every=2, until=100)
    models, rewirers = both_stores(nn.Sequential(build(), nn.GELU()).double(), method)
    for step in range(9):
        x = torch.randn(4, 7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for store, model in models.items():
            model(x).square().mean().backward()
            rewirers[store].store.optimizer.step()
            rewirers[store].store.optimizer.zero_grad()
    assert len(rewirers["packed"].history) == len(rewirers["masked"].history) > 2
    assert torch.equal(rewirers["packed"].layers[0].active(), rewirers["masked"].layers[0].active())
    dense = {store: rewire.to_dense(model)[0].weight for store, model in models.items()}
    torch.testing.assert_close(dense["packed"], dense["masked"])
