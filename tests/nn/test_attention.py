"""Attention and transformers of torch and of Hugging Face in the packed store."""

import copy
import pickle

import pytest
import torch
import transformers
from tests.nn.both_stores import both_stores, packed_layers, plan_kinds, same_gradients
from torch import nn

import rewire
from rewire.kernels import library
from rewire.kernels.batch.linear_plan import LinearPlan
from rewire.nn.dense_weight import DenseWeight
from rewire.nn.packed import PackedAttention, PackedInputsFirst

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the native kernels are not built"),
    pytest.mark.filterwarnings("ignore"),  # of Transformers, about its own calls of torch
]


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


@pytest.mark.parametrize("build", [vit, bert, gpt2, llama])
def test_models_of_transformers_make_the_same_steps_in_float64_and_pack(build):
    """Gradients, rewirings by GGR and outputs; then ``pack`` of either store, in float32."""
    torch.manual_seed(0)
    model, inputs = build()
    inputs = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    models, rewirers = both_stores(model.double(), rewire.ggr(density=0.15, every=2, until=100))
    tolerance = 1e-5 if build is llama else 1e-11  # Llama's norm computes in float32 whatever it is given
    for step in range(5):
        for one in models.values():
            output = one(**inputs)
            (output.logits.square().mean() if output.loss is None else output.loss).backward()
        if step == 0:
            same_gradients(models, tolerance)
        for rewirer in rewirers.values():
            rewirer.store.optimizer.step()
            rewirer.store.optimizer.zero_grad()
    assert len(rewirers["packed"].history) == 2
    for one, other in zip(rewirers["packed"].layers, rewirers["masked"].layers, strict=True):
        assert torch.equal(one.active(), other.active()), one.name
    results = {}
    with torch.no_grad():
        for store, one in models.items():
            results[store] = one.eval()(**inputs).logits
            fast = rewire.pack(copy.deepcopy(one).float(), densest=1.0)
            assert packed_layers(fast).keys() >= packed_layers(models["packed"]).keys()
            for batch in (1, 2, 3):
                few = {name: x[:1].expand(batch, *x.shape[1:]) for name, x in inputs.items()}
                few = {name: x.float() if x.is_floating_point() else x for name, x in few.items()}
                expected = rewire.to_dense(one).float()(**few).logits
                torch.testing.assert_close(fast(**few).logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results["packed"], results["masked"], rtol=tolerance, atol=tolerance)


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


def attentions():
    x, memory, other = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.randn(2, 7, 16)
    return {
        "self": (nn.MultiheadAttention(16, 2, batch_first=True), (x, x, x)),
        "sequence first": (nn.MultiheadAttention(16, 2, bias=False), (x, x, x)),
        "cross": (nn.MultiheadAttention(16, 2, batch_first=True), (x, memory, memory)),
        "three inputs": (nn.MultiheadAttention(16, 2, batch_first=True, add_zero_attn=True), (x, memory, other)),
        "biases": (nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True), (x, x, x)),
        "separate": (nn.MultiheadAttention(16, 2, kdim=6, vdim=4), (x, torch.randn(7, 5, 6), torch.randn(7, 5, 4))),
        "unbatched": (nn.MultiheadAttention(16, 2), (x[0], x[0], x[0])),
    }


@pytest.mark.filterwarnings("error:.*as a dense tensor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", attentions())
def test_attention_of_torch_computes_what_the_masked_one_does(name, need_weights, dtype, monkeypatch):
    torch.manual_seed(0)
    model, inputs = attentions()[name]
    models, _ = both_stores(model.to(dtype))
    packed = packed_layers(models["packed"])
    assert packed.keys() == ({"out_proj"} if name == "separate" else {"", "out_proj"})
    monkeypatch.setattr(DenseWeight, "write_out", None)  # no weight is made dense
    converted = {id(one): one.to(dtype) for one in inputs}  # torch asks whether inputs are the same object
    x = [converted[id(one)] for one in inputs]
    outputs = {store: one(*x, need_weights=need_weights) for store, one in models.items()}
    for found, expected in zip(outputs["packed"], outputs["masked"], strict=True):
        torch.testing.assert_close(found, expected)
    for output, _ in outputs.values():
        output.square().sum().backward()
    same_gradients(models, 1e-4 if dtype == torch.float32 else 1e-12)


def test_packed_attention_is_saved_copied_converted_and_restored(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    models, rewirers = both_stores(nn.MultiheadAttention(16, 2, batch_first=True))
    packed, masked = models["packed"], models["masked"]
    assert isinstance(packed, PackedAttention)
    expected = masked(x, x, x)[0]

    def same(model):
        torch.testing.assert_close(model(x, x, x)[0], expected)

    state = packed.state_dict()
    assert state["in_proj_weight"].shape == state["in_proj_weight_positions"].shape
    for store in ("packed", "masked"):  # checkpoints of either store load into the other
        fresh, _ = both_stores(nn.MultiheadAttention(16, 2, batch_first=True))
        fresh[store].load_state_dict(models["masked" if store == "packed" else "packed"].state_dict())
        same(fresh[store])
    same(copy.deepcopy(packed))
    same(pickle.loads(pickle.dumps(packed)))
    same(rewire.to_dense(packed))
    assert type(rewire.to_dense(packed)) is nn.MultiheadAttention
    same(rewire.pack(packed))
    rewire.save_sparse(packed, tmp_path / "attention.safetensors")
    again = nn.MultiheadAttention(16, 2, batch_first=True)
    rewire.load_sparse(tmp_path / "attention.safetensors", again, packed=True)
    assert isinstance(again, PackedAttention)
    same(again)
    average = torch.optim.swa_utils.AveragedModel(packed)
    same(average.module)
    rewirers["packed"].check()
    rewirers["packed"].remove()
    assert type(packed) is nn.MultiheadAttention
    same(packed)


def test_rewirings_of_attention_make_the_same_edits_as_masked():
    torch.manual_seed(0)
    method = rewire.ggr(density=0.3, every=2, until=100)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True)
    models, rewirers = both_stores(layer.double(), method)
    for step in range(9):
        x = torch.randn(4, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for store, model in models.items():
            model(x).square().mean().backward()
            rewirers[store].store.optimizer.step()
            rewirers[store].store.optimizer.zero_grad()
    assert len(rewirers["packed"].history) == len(rewirers["masked"].history) > 2
    for one, other in zip(rewirers["packed"].layers, rewirers["masked"].layers, strict=True):
        assert torch.equal(one.active(), other.active()), one.name
    dense = {store: rewire.to_dense(model).state_dict() for store, model in models.items()}
    for name, tensor in dense["packed"].items():
        torch.testing.assert_close(tensor, dense["masked"][name])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_of_torch_train_and_evaluate(activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, activation=activation, batch_first=True)
    models, _ = both_stores(nn.TransformerEncoder(layer, 2))
    names = {"self_attn", "self_attn.out_proj", "linear1", "linear2"}
    assert packed_layers(models["packed"]).keys() == {f"layers.{i}.{name}" for i in (0, 1) for name in names}
    x = torch.randn(2, 5, 16)
    outputs = {store: model(x) for store, model in models.items()}
    torch.testing.assert_close(outputs["packed"], outputs["masked"])
    weights = torch.randn_like(x)  # a sum of squares behind a layer norm has almost no gradient
    for output in outputs.values():
        (output * weights).sum().backward()
    same_gradients(models, 1e-3)
    with torch.no_grad():
        results = [models[store].eval()(x) for store in ("packed", "masked")]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["attention", "encoder", "conv1d", "linear"])
def test_compiled_traced_and_exported_layers_compute_the_same(name):
    torch.manual_seed(0)
    model = {
        "attention": SelfAttention(),
        "encoder": nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True),
        "conv1d": nn.Sequential(transformers.pytorch_utils.Conv1D(8, 16), nn.GELU()),
        "linear": nn.Sequential(nn.Linear(16, 8), nn.GELU()),
    }[name]
    packed = both_stores(model)[0]["packed"]
    x = torch.randn(2, 5, 16)
    expected = packed(x)
    compiled = torch.compile(packed, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), list(packed.parameters())) for y in (compiled, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    packed.eval()
    torch.testing.assert_close(torch.jit.trace(packed, x, check_trace=False)(x), expected)
    torch.testing.assert_close(torch.export.export(packed, (x,)).module()(x), expected)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]
