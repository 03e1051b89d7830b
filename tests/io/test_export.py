"""Files that come back as they were, and files that should not be read."""

import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import scipy.sparse
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import rewire
from rewire.io.export import load_csr, save_csr, save_dense, save_onnx, save_sparse, to_csr
from rewire.lab import models


def network(density=0.03, name="vgg-small", width=0.5):
    model = models.build(name, classes=10, image=(1, 8, 8), width=width, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=density))
    return model.eval()


def plain(name="vgg-small", width=0.5, seed=1):
    return models.build(name, classes=10, image=(1, 8, 8), width=width, seed=seed).eval()


X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_sparse_files_come_back_bit_by_bit_with_their_topology(tmp_path):
    model = network()
    model[0].weight.data[model[0].weight_mask.nonzero(as_tuple=True)] = 0.0  # active zeros are weights
    save_sparse(model, tmp_path / "a")
    state = rewire.load_sparse(tmp_path / "a")
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert state["0.weight_mask"].sum() > 0


def test_sparse_files_load_into_a_model_without_masks(tmp_path):
    model, other = network(), plain()
    save_sparse(model, tmp_path / "a")
    rewire.load_sparse(tmp_path / "a", other)
    assert torch.equal(model(X), other(X))


def test_indices_have_as_many_bits_as_they_need(tmp_path):
    save_sparse(network(), tmp_path / "a")
    tensors = load_file(tmp_path / "a")
    assert {t.dtype for n, t in tensors.items() if n.endswith("columns")} == {torch.uint16}
    wide = nn.Sequential(nn.Linear(70_000, 2))
    wide[0].register_buffer("weight_mask", torch.rand(2, 70_000) < 0.01)
    wide[0].weight.data *= wide[0].weight_mask
    save_sparse(wide, tmp_path / "b")
    assert load_file(tmp_path / "b")["0.weight.sparse_columns"].dtype == torch.int32


def test_vgg16_at_97_percent_is_at_least_ten_times_smaller(tmp_path):
    model = models.build("vgg16", classes=200, image=(3, 64, 64), width=0.25, seed=0)
    rewire.sparsify(model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.03))
    save_dense(model, tmp_path / "dense")
    save_sparse(model, tmp_path / "sparse")
    assert (tmp_path / "dense").stat().st_size > 10 * (tmp_path / "sparse").stat().st_size


def test_a_shrunk_network_is_loaded_into_a_full_one(tmp_path):
    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False)).eval()

    model = build()
    rewire.sparsify(model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.5))
    model[1].weight_mask[::2] = False
    model[1].weight.data[::2] = 0
    small = rewire.shrink(model, X)
    save_sparse(small, tmp_path / "a")
    other = build()
    rewire.load_sparse(tmp_path / "a", other)
    assert other[1].out_features == other[2].num_features == other[3].in_features == 3
    assert other[3].bias is not None  # the constants: there was none before
    assert torch.equal(other(X), small(X))


def test_a_file_of_another_model_is_refused(tmp_path):
    save_sparse(network(), tmp_path / "a")
    with pytest.raises(ValueError, match="is of another model than Sequential"):
        rewire.load_sparse(tmp_path / "a", plain("mlp"))


def test_dense_files_are_plain_state(tmp_path):
    model, other = network(), plain()
    save_dense(model, tmp_path / "a")
    other.load_state_dict(load_file(tmp_path / "a"))
    assert torch.equal(model(X), other(X))


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


def test_values_outside_the_mask_are_refused_and_leave_no_file(tmp_path):
    model = network()
    model[0].weight.data += 1
    with pytest.raises(ValueError, match=r"0.weight has values where its mask says"):
        save_sparse(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()


BAD = {
    "outside of its shape": {"w.sparse_columns": torch.tensor([0, 9], dtype=torch.uint16)},
    "twice or out of order": {"w.sparse_columns": torch.tensor([1, 1], dtype=torch.uint16)},
    "positions outside": {"w.sparse_rows": torch.tensor([0, 9, 2], dtype=torch.uint16)},
    "and \\(3,\\) values": {"w.sparse_values": torch.ones(3)},
}


@pytest.mark.parametrize("message", BAD)
def test_positions_are_checked_before_they_are_used(tmp_path, message):
    good = {
        "w.sparse_values": torch.ones(2),
        "w.sparse_columns": torch.tensor([0, 2], dtype=torch.uint16),
        "w.sparse_rows": torch.tensor([0, 2, 2], dtype=torch.uint16),
    }
    save_file(good, tmp_path / "a", {"shapes": '{"w": [2, 3]}'})
    assert rewire.load_sparse(tmp_path / "a")["w"].tolist() == [[1, 0, 1], [0, 0, 0]]
    save_file(good | BAD[message], tmp_path / "a", {"shapes": '{"w": [2, 3]}'})
    with pytest.raises(ValueError, match=message):
        rewire.load_sparse(tmp_path / "a")


@pytest.mark.parametrize("shapes", ['{"w": [2, 99999999999]}', '{"w": [-2, 3]}', '{"w": 3}', "[1]", "{", '{"v": [1]}'])
def test_a_header_that_lies_takes_no_memory(tmp_path, shapes):
    good = {"w.sparse_values": torch.ones(0), "w.sparse_columns": torch.zeros(0, dtype=torch.uint16)}
    good["w.sparse_rows"] = torch.zeros(3, dtype=torch.uint16)
    save_file(good, tmp_path / "a", {"shapes": shapes})
    with pytest.raises(ValueError, match="is not a sparse network"):
        rewire.load_sparse(tmp_path / "a")


def corrupted(data: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, overwritten, or with another length of the header."""
    made = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(made[: rng.randrange(len(made))])
    if kind == 1:
        for _ in range(rng.randrange(1, 9)):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        at = rng.randrange(min(len(made), 2000))
        made[at : at + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
    else:
        made[: rng.randrange(1, 9)] = rng.randbytes(8)[: rng.randrange(1, 9)]
    return bytes(made)


def test_thousands_of_corrupted_files_are_an_error_or_a_state(tmp_path):
    model = network(0.05, "mlp", 0.1)
    save_sparse(model, tmp_path / "a")
    data, path, rng = (tmp_path / "a").read_bytes(), tmp_path / "b", random.Random(0)
    refused = read = 0
    for _ in range(3000):
        path.write_bytes(corrupted(data, rng))
        try:
            state = rewire.load_sparse(path, plain("mlp", 0.1) if rng.random() < 0.02 else None)
            assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
        except ValueError as error:
            refused += str(path) in str(error)
        else:
            read += 1
    assert refused + read == 3000
    assert refused > 1500


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


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize("read", [rewire.load_sparse, load_csr])
def test_a_pickle_is_refused_and_not_executed(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Harmful()}, tmp_path / "a")
    np.save(tmp_path / "b.npy", np.array([Harmful()], dtype=object), allow_pickle=True)
    for file in ("a", "b.npy"):
        with pytest.raises(ValueError, match="Write it anew"):
            read(tmp_path / file)
    assert not (tmp_path / "harm").exists()


def test_importing_the_export_needs_torch_and_numpy_only():
    code = """
import sys
for name in ("safetensors", "onnx", "onnxruntime", "scipy"): sys.modules[name] = None
import rewire; rewire.load_sparse; rewire.shrink
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_is_missing_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("rewire._extras.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rewire\[onnx\]'"):
        save_onnx(plain("mlp"), tmp_path / "a", X)
