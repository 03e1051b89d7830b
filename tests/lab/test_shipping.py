"""The commands that look at a run and make something of it."""

import json

import pytest
import torch

import rewire
from rewire.lab import models
from rewire.lab.cli import main
from rewire.lab.network import read_network
from rewire.lab.run import Run
from rewire.lab.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train(Run(model="mlp", width=0.5, epochs=3, every=4, limit=256, sparsity=0.97, start="connected-erk"), path)
    return path


def built():
    return models.build("mlp", classes=10, image=(1, 8, 8), width=0.5)


def test_a_network_is_read_without_its_data(folder):
    trained = read_network(folder)
    assert trained.model[1].weight_mask.dtype == torch.bool
    assert trained.model[1].weight[~trained.model[1].weight_mask].abs().sum() == 0
    assert read_network(folder / "checkpoint.safetensors").run == trained.run
    with pytest.raises(FileNotFoundError, match="give the folder of a run"):
        read_network(folder / "nothing")


def test_inspect_prints_what_the_result_says(folder, capsys):
    main(["inspect", str(folder), "--json", "--against", str(folder)])
    found = json.loads(capsys.readouterr().out)
    result = json.loads((folder / "result.json").read_text())
    assert found["flops"] == result["flops"]
    assert found["total"]["nnz"] == result["nnz"]
    assert [row["empty_neurons"] for row in found["layers"]] == [row["empty_neurons"] for row in result["layers"]]
    assert all(row["kept"] == row["jaccard"] == 1 for row in (*found["layers"], found["total"]))
    assert found["total"]["explored"] == result["explored"] > result["nnz"]
    assert [row["explored"] for row in found["layers"]] == [row["explored"] for row in result["layers"]]
    assert 0 < found["flops"]["training_ratio"] < 1


def test_inspect_as_a_table_with_pictures(folder, tmp_path, capsys):
    main(["inspect", str(folder), "--pictures", str(tmp_path)])
    assert "multiply-adds" in capsys.readouterr().out
    assert {"densities.png", "over-time.svg", "mask-1.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["small.safetensors", "small.pt"])
def test_shrink(folder, tmp_path, capsys, name):
    main(["shrink", str(folder), "-o", str(tmp_path / name)])
    assert "same function" in capsys.readouterr().out
    trained = read_network(folder)
    if name.endswith(".pt"):
        state = torch.load(tmp_path / name, weights_only=True)["model"]
        assert state["1.weight"].shape[0] <= 150
    else:
        model = built().eval()
        rewire.load_sparse(tmp_path / name, model)
        torch.testing.assert_close(model(trained.example), trained.model(trained.example), rtol=1e-4, atol=1e-5)
        assert model[1].out_features < 150


@pytest.mark.parametrize("kind", ["dense", "csr", "safetensors", "onnx"])
@pytest.mark.parametrize("shrunk", [[], ["--shrink"]])
def test_export(folder, tmp_path, capsys, kind, shrunk):
    main(["export", str(folder), "--to", kind, "-o", str(tmp_path / "file"), *shrunk])
    assert (tmp_path / "file").stat().st_size > 100
    assert "read back and compared" in capsys.readouterr().out


def test_what_is_wrong_is_one_line(folder, tmp_path, capsys):
    for words in (
        ["shrink", str(folder), "-o", str(tmp_path / "small.zip")],
        ["export", str(tmp_path), "--to", "dense", "-o", str(tmp_path / "a")],
        ["inspect", str(folder / "topology.safetensors")],
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert capsys.readouterr().err.count("\n") == 1
