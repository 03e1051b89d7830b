"""Sparse files come back as they were; damaged and malicious ones are refused."""

import json
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.io.small import X, corrupted, network, plain
from torch import nn

import rewire
from rewire.io import load_csr, save_dense, save_sparse
from rewire.io.files import write_tensors
from rewire.io.sparse_file import FORMAT, sparse_dictionary
from rewire.lab import models

WRITTEN_BEFORE = Path(__file__).parent / "written_before"


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


def test_a_kernel_of_another_size_is_refused(tmp_path):
    save_sparse(nn.Conv2d(2, 8, 3, padding=1), tmp_path / "a")
    with pytest.raises(ValueError, match=r"weight has shape \(8, 2, 3, 3\), the model's \(8, 2, 5, 5\)"):
        rewire.load_sparse(tmp_path / "a", nn.Conv2d(2, 8, 5, padding=2))


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
    metadata = {"format": FORMAT, "shapes": '{"w": [2, 3]}'}  # with a checksum: an attacker can compute one too
    write_tensors(tmp_path / "a", good, metadata)
    assert rewire.load_sparse(tmp_path / "a")["w"].tolist() == [[1, 0, 1], [0, 0, 0]]
    write_tensors(tmp_path / "a", good | BAD[message], metadata)
    with pytest.raises(ValueError, match=message):
        rewire.load_sparse(tmp_path / "a")


@pytest.mark.parametrize("shapes", ['{"w": [2, 99999999999]}', '{"w": [-2, 3]}', '{"w": 3}', "[1]", "{", '{"v": [1]}'])
def test_a_header_that_lies_takes_no_memory(tmp_path, shapes):
    good = {"w.sparse_values": torch.ones(0), "w.sparse_columns": torch.zeros(0, dtype=torch.uint16)}
    good["w.sparse_rows"] = torch.zeros(3, dtype=torch.uint16)
    write_tensors(tmp_path / "a", good, {"format": FORMAT, "shapes": shapes})
    with pytest.raises(ValueError, match="is not a sparse network"):
        rewire.load_sparse(tmp_path / "a")


def test_thousands_of_corrupted_files_without_a_checksum_are_an_error_or_a_state(tmp_path):
    save_sparse(network(0.05, "mlp", 0.1), tmp_path / "a")
    tensors = load_file(tmp_path / "a")
    save_file(tensors, tmp_path / "a", metadata_of(tmp_path / "a") | {"format": "rewire-sparse-1"})
    data, path, rng = (tmp_path / "a").read_bytes(), tmp_path / "b", random.Random(0)
    refused = read = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has no checksum")
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


def metadata_of(path):
    """The metadata of a safetensors file, without its checksum."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {key: text for key, text in header["__metadata__"].items() if key != "checksum"}


def tiny():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].register_buffer("weight_mask", torch.eye(3, 4, dtype=torch.bool))
    model[0].weight.data *= model[0].weight_mask
    return model


@pytest.mark.parametrize("save", [save_sparse, save_dense])
def test_every_single_bit_flip_is_refused(tmp_path, save):
    save(tiny(), tmp_path / "a")
    data, path = (tmp_path / "a").read_bytes(), tmp_path / "b"
    rewire.load_sparse(tmp_path / "a")
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(ValueError, match="Write it anew"):
                rewire.load_sparse(path)


def test_a_changed_dictionary_is_refused():
    for compressed in (False, True):
        good = sparse_dictionary(tiny(), compressed=compressed)
        rewire.load_sparse(good, nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        key = "0.weight.sparse_values" if compressed else "0.weight"
        changed = good["model"] | {key: good["model"][key].nextafter(torch.tensor(9.0))}
        for bad in (
            good | {"model": changed},
            good | {"sizes": {}},
            {k: v for k, v in good.items() if k != "checksum"},
        ):
            with pytest.raises(ValueError, match="this dictionary is damaged: its content does not match its checksum"):
                rewire.load_sparse(bad)


def test_a_file_of_an_earlier_version_is_read_with_a_warning():
    path = WRITTEN_BEFORE / "format-1.safetensors"
    with pytest.warns(UserWarning, match="format-1.safetensors was written by an earlier version and has no checksum"):
        state = rewire.load_sparse(path)
    assert state["0.weight"].tolist() == [[1, 0, 0, 4], [0, 0, 7, 0], [0, 10, 0, 0]]
    assert state["0.weight_mask"].sum() == 4
    before = {"model": state, "sizes": {}}  # as ``rewire shrink -o small.pt`` wrote it
    with pytest.warns(UserWarning, match="this dictionary was written by an earlier version") as caught:
        assert torch.equal(rewire.load_sparse(before)["2.weight"], torch.tensor([[1.0, 2, 3], [-1, -2, -3]]))
    assert len(caught) == 1


def test_a_frozen_batch_norm_stays_in_evaluation_mode(tmp_path):
    model = nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    model[1].eval()
    save_sparse(model, tmp_path / "a", X.flatten(1))
    save_dense(model, tmp_path / "a", X.flatten(1))
    assert [module.training for module in model] == [True, False, True]


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
