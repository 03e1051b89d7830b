"""Dense, CSR and ONNX files come back as they were, and the tools that they are for read them."""

import random
import warnings

import numpy as np
import onnxruntime
import pytest
import scipy.sparse
import torch
from safetensors.torch import load_file
from tests.io.small import X, corrupted, network, plain
from torch import nn

import rewire
from rewire.io import load_csr, save_csr, save_dense, save_onnx, to_bsr, to_csr, to_semi_structured_arrays
from rewire.io.compare import compare_outputs


def test_dense_files_are_plain_state(tmp_path):
    model, other = network(), plain()
    save_dense(model, tmp_path / "a")
    other.load_state_dict(load_file(tmp_path / "a"))
    assert torch.equal(model(X), other(X))


def test_a_path_may_be_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = network(name="mlp")
    for name, save in (("a", save_dense), ("b", rewire.save_sparse), ("c", save_csr)):
        save(model, name)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_csr_multiplies_like_the_layer_in_torch_and_in_scipy(tmp_path):
    model = network(name="mlp")
    save_csr(model, tmp_path / "a.npz")
    x = torch.randn(64, 3)
    weight = model.state_dict()["1.weight"]
    assert torch.allclose(load_csr(tmp_path / "a.npz")["1.weight"] @ x, weight @ x, atol=1e-5)
    with np.load(tmp_path / "a.npz") as file:
        parts = tuple(file[f"1.weight/{key}"] for key in ("data", "indices", "indptr"))
        matrix = scipy.sparse.csr_array(parts, shape=file["1.weight/shape"])
    np.testing.assert_allclose(matrix @ x.numpy(), (weight @ x).numpy(), atol=1e-5)
    assert to_csr(model)["1.weight"].values().numel() == model[1].weight_mask.sum()


@pytest.mark.parametrize("convert", [to_csr, lambda model: to_bsr(model, 1), to_semi_structured_arrays])
def test_values_outside_the_mask_are_refused(convert):
    model = network(name="mlp")
    with torch.no_grad():
        model[1].weight[~model[1].weight_mask] = 7.0
    with pytest.raises(ValueError, match=r"1.weight has values where its mask says"):
        convert(model)


def test_a_csr_file_is_not_written_with_values_outside_the_mask(tmp_path):
    model = network(name="mlp")
    model[1].weight.data += 1
    with pytest.raises(ValueError, match=r"1.weight has values where its mask says"):
        save_csr(model, tmp_path / "a")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("shrunk", [False, True])
def test_onnx_runtime_computes_the_same(tmp_path, shrunk):
    model = network(0.1, "mlp", 0.25)
    if shrunk:
        model[1].weight_mask[::2] = False
        model[1].weight.data[::2] = 0
        model = rewire.shrink(model, X)
    save_onnx(model, tmp_path / "a.onnx", X)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    for x in (X, X[:1]):
        (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(theirs), model(x), rtol=1e-4, atol=1e-5)


def test_corrupted_csr_files_are_an_error(tmp_path):
    save_csr(network(0.05, "mlp", 0.1), tmp_path / "a")
    data, rng, refused = (tmp_path / "a").read_bytes(), random.Random(0), 0
    for _ in range(200):
        (tmp_path / "b").write_bytes(corrupted(data, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_csr(tmp_path / "b")
            except ValueError:
                refused += 1
    assert refused > 100


class Returns(nn.Module):
    """A sparse layer whose output is returned inside of something else."""

    def __init__(self, inside):
        super().__init__()
        self.layer, self.inside = nn.Linear(8, 8), inside
        self.layer.register_buffer("weight_mask", torch.eye(8, dtype=torch.bool))
        self.layer.weight.data *= self.layer.weight_mask

    def forward(self, x):
        return self.inside(self.layer(x))


@pytest.mark.parametrize("save", [rewire.save_sparse, save_dense, save_csr, save_onnx])
@pytest.mark.parametrize("inside", [lambda y: (y, y[:, :2]), lambda y: {"a": y, "b": [y.relu()]}, lambda y: y])
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_outputs_may_be_nested_and_batches_empty(tmp_path, save, inside, samples):
    save(Returns(inside), tmp_path / "a", torch.randn(samples, 8))
    assert (tmp_path / "a").exists()


def test_a_difference_in_any_output_is_noticed():
    y = torch.ones(2)
    compare_outputs((y, {"a": y}), (y, {"a": y}))
    for other in ((y, {"a": y + 1}), (y, {"a": y[:1]}), (y, {"a": y.double()}), (y,)):
        with pytest.raises(ValueError, match="what was read back computes something else"):
            compare_outputs((y, {"a": y}), other)
    with pytest.raises(ValueError, match="the network returns no tensor to compare"):
        compare_outputs("text", "text")


@pytest.mark.parametrize("tokens", [[[4, 0, 1]], [[4, 0, 1], [3, 1, 0]]])
def test_onnx_files_of_networks_that_read_integers(tmp_path, tokens):
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    save_onnx(model, tmp_path / "a", torch.tensor(tokens))  # an index above 4 would raise
    session = onnxruntime.InferenceSession(str(tmp_path / "a"))
    x = torch.tensor([[1, 2, 3]])
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(theirs), model(x), rtol=1e-4, atol=1e-5)


def test_what_is_missing_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("rewire._extras.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rewire\[onnx\]'"):
        save_onnx(plain("mlp"), tmp_path / "a", X)
