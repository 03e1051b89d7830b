"""Packed layers in transformers: sequences, activation functions behind a layer, autocast, models of Transformers."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import rewire
from rewire.kernels import library
from rewire.kernels.batch.linear_plan import LinearPlan
from rewire.kernels.batch.plan import Plan
from rewire.kernels.plan_cache import _PLANS
from rewire.nn.packed import Packed, PackedInputsFirst, pack_module

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the native kernels are not built"),
    pytest.mark.filterwarnings("ignore"),  # of Transformers, about its own calls of torch
]


def both_stores(model, method=None, **options):
    """The same model and topology in the masked and in the packed store, with their rewirers."""
    models, rewirers = {}, {}
    for store in ("masked", "packed"):
        models[store] = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(models[store].parameters(), lr=1e-3)
        torch.manual_seed(0)
        rewirers[store] = rewire.sparsify(
            models[store], optimizer, method or rewire.static(density=0.3), store=store, seed=0, **options
        )
    return models, rewirers


def plan_kinds(layer):
    """Which kinds of index tables a packed layer has: token-major or batch-innermost ones."""
    _, plans = _PLANS.get(layer.weight_positions, (0, {}))
    return {key[0] for key in plans}


def packed_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Packed)}


def gradients(model):
    """Of all parameters, as dense tensors."""
    found = {}
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, Packed) and name.endswith("weight"):
            found[name] = torch.zeros(module.dense_shape).flatten()
            found[name] = found[name].to(parameter).index_put((module.weight_positions.long(),), parameter.grad)
            found[name] = found[name].view(module.dense_shape)
        else:
            mask = dict(module.named_buffers(recurse=False)).get(f"{name.rpartition('.')[2]}_mask")
            found[name] = parameter.grad if mask is None or parameter.grad is None else parameter.grad * mask
    return found


def same_gradients(models, tolerance):
    masked, packed = gradients(models["masked"]), gradients(models["packed"])
    assert masked.keys() == packed.keys()
    for name, grad in masked.items():
        if grad is None:
            assert packed[name] is None
            continue
        scale = max(float(grad.abs().max()), 1e-3)
        torch.testing.assert_close(
            packed[name], grad, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


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


# ---- models of torch and of Transformers


def vit():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 8, 8)}


def words():
    return torch.randint(30, (2, 9), generator=torch.Generator().manual_seed(0))


def bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**sizes, vocab_size=30, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return transformers.BertForSequenceClassification(config), {"input_ids": words()}


def gpt2():
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16, **dropout)
    return transformers.GPT2LMHeadModel(config), {"input_ids": words(), "labels": words()}


def llama():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    config = transformers.LlamaConfig(**sizes, vocab_size=30, num_key_value_heads=1, max_position_embeddings=16)
    return transformers.LlamaForCausalLM(config), {"input_ids": words(), "labels": words()}


@pytest.mark.parametrize("build", [vit, bert, gpt2, llama])
def test_models_of_transformers_run_packed(build):
    torch.manual_seed(0)
    model, inputs = build()
    models, rewirers = both_stores(model)
    packed = packed_layers(models["packed"])
    blocks = [name for name in packed if any(part.isdigit() for part in name.split("."))]
    assert len(blocks) >= 2 * 4, f"packed are only {list(packed)}; {rewirers['packed'].store.notes}"
    outputs = {store: one(**inputs) for store, one in models.items()}
    for output in outputs.values():
        (output.logits.square().mean() if output.loss is None else output.loss).backward()
    torch.testing.assert_close(outputs["packed"].logits, outputs["masked"].logits, rtol=1e-4, atol=1e-5)
    same_gradients(models, 1e-3)
    assert all(LinearPlan in {base for kind in plan_kinds(packed[name]) for base in kind.__mro__} for name in blocks)
    for one in models.values():
        one.eval()
    with torch.no_grad():
        results = [models[store](**inputs).logits for store in ("packed", "masked")]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_conv1d_of_gpt2_is_packed_saved_and_restored():
    torch.manual_seed(0)
    layer = transformers.pytorch_utils.Conv1D(14, 10)
    models, rewirers = both_stores(nn.Sequential(layer))
    packed, masked = models["packed"], models["masked"]
    assert isinstance(packed[0], PackedInputsFirst)
    for x in (torch.randn(5, 10), torch.randn(2, 3, 10), torch.randn(1, 10)):
        torch.testing.assert_close(packed(x), masked(x))
    torch.testing.assert_close(copy.deepcopy(packed)(x), packed(x))
    fresh = both_stores(nn.Sequential(transformers.pytorch_utils.Conv1D(14, 10)))[0]["packed"]
    fresh.load_state_dict(packed.state_dict())
    assert torch.equal(fresh(x), packed(x))
    assert rewire.to_dense(packed)[0].weight.shape == (10, 14)
    torch.testing.assert_close(rewire.to_dense(packed)(x), masked(x))
    rewirers["packed"].remove()
    assert type(packed[0]) is transformers.pytorch_utils.Conv1D
    torch.testing.assert_close(packed(x), masked(x))


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_torch_computes_what_the_masked_one_does(need_weights):
    torch.manual_seed(0)
    models, _ = both_stores(nn.MultiheadAttention(16, 2, batch_first=True))
    x = torch.randn(2, 5, 16)
    outputs = {store: model(x, x, x, need_weights=need_weights)[0] for store, model in models.items()}
    torch.testing.assert_close(outputs["packed"], outputs["masked"])
    for output in outputs.values():
        output.square().sum().backward()
    same_gradients(models, 1e-4)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_of_torch_train_and_evaluate(activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, activation=activation, batch_first=True)
    models, _ = both_stores(nn.TransformerEncoder(layer, 2))
    assert {"layers.0.linear1", "layers.1.linear2"} <= packed_layers(models["packed"]).keys()
    x = torch.randn(2, 5, 16)
    outputs = {store: model(x) for store, model in models.items()}
    torch.testing.assert_close(outputs["packed"], outputs["masked"])
    for output in outputs.values():
        output.square().sum().backward()
    same_gradients(models, 1e-3)
    with torch.no_grad():
        results = [models[store].eval()(x) for store in ("packed", "masked")]
    torch.testing.assert_close(*results)
