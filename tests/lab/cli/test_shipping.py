"""The commands that look at a run and make something of it."""

import json
from dataclasses import replace

import pytest
import torch

import rewire
from rewire.analysis.density import masks
from rewire.lab import models
from rewire.lab.cli import benching
from rewire.lab.cli.main import main
from rewire.lab.cli.shipping import WRITERS
from rewire.lab.run import Run
from rewire.lab.training.network import read_network
from rewire.lab.training.train import train
from rewire.nn.packed import PackedLinear


@pytest.fixture(scope="module", params=["masked", "packed"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / request.param
    options = {"model": "mlp", "width": 0.5, "epochs": 3, "every": 1, "limit": 256, "sparsity": 0.97}
    train(Run(**options, start="connected-erk", store=request.param), path)
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
    told = capsys.readouterr().out
    assert "multiply-adds" in told
    assert f"files in {tmp_path}" in told.replace("\n", "")
    assert all(len(line) < 200 and "…" not in line for line in told.splitlines())
    assert {"densities.png", "over-time.svg", "mask-1.png"} <= {path.name for path in tmp_path.iterdir()}


def test_inspect_against_another_run(folder, tmp_path, capsys):
    other = tmp_path / "other"
    train(replace(read_network(folder).run, seed=1), other)
    main(["inspect", str(folder), "--against", str(other), "--json"])
    found = json.loads(capsys.readouterr().out)
    first, last = masks(read_network(other).model), masks(read_network(folder).model)
    for row, one, two in zip(found["layers"], first.values(), last.values(), strict=True):
        assert row["kept"] == pytest.approx(int((one & two).sum()) / int(one.sum()))
        assert row["jaccard"] == pytest.approx(int((one & two).sum()) / int((one | two).sum()))
    assert 0 < found["total"]["kept"] < 0.5
    main(["inspect", str(folder), "--against", str(other)])
    told = capsys.readouterr().out
    assert "kept" in told.splitlines()[0]
    assert f"{found['total']['kept']:.2%} of the weights of" in told


def test_both_stores_leave_networks_that_read_alike(folder):
    trained = read_network(folder)
    bare = {name for name in trained.model.state_dict() if not name.endswith("mask")}
    assert bare == set(built().state_dict())
    assert {tensor.shape for tensor in masks(trained.model).values()} == {m.weight.shape for m in built()[1::2]}


@pytest.mark.parametrize("packed", [[], ["--packed"]])
@pytest.mark.parametrize("name", ["small.safetensors", "small.pt"])
def test_shrink(folder, tmp_path, capsys, name, packed):
    main(["shrink", str(folder), "-o", str(tmp_path / name), *packed])
    told = capsys.readouterr().out
    assert "same function" in told
    assert "weights that exist" in told
    trained, model = read_network(folder), built().eval()
    file = tmp_path / name
    source = torch.load(file, weights_only=True) if name.endswith(".pt") else file
    rewire.load_sparse(source, model, packed=bool(packed))
    torch.testing.assert_close(model(trained.example), trained.model(trained.example), rtol=1e-4, atol=1e-5)
    assert model[1].out_features < 150
    assert isinstance(model[1], PackedLinear) is bool(packed)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.endswith(".pt"):
        assert (file.stat().st_size < 15_000) is bool(packed)


ENDS = {kind: suffix for kind, (suffix, _) in WRITERS.items()}


@pytest.mark.parametrize("kind", list(ENDS))
@pytest.mark.parametrize("shrunk", [[], ["--shrink"]])
def test_export(folder, tmp_path, capsys, kind, shrunk):
    file = tmp_path / f"file{ENDS[kind]}"
    main(["export", str(folder), "--to", kind, "-o", str(file), *shrunk])
    assert file.stat().st_size > 100
    assert "read back and compared" in capsys.readouterr().out


@pytest.fixture
def wrong(folder, tmp_path):
    """Commands that cannot work."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "cut.safetensors").write_bytes((folder / "checkpoint.safetensors").read_bytes()[:5000])
    (tmp_path / "empty.safetensors").touch()
    run, out = str(folder), str(tmp_path / "out.pt")
    return [
        ["shrink", run, "-o", str(tmp_path / "small.zip")],
        ["shrink", run, "-o", str(tmp_path / "file" / "small.pt")],
        ["shrink", str(folder / "metrics.jsonl"), "-o", out],
        ["export", str(tmp_path), "--to", "dense", "-o", out],
        *(["export", run, "--to", kind, "-o", str(tmp_path)] for kind in ("dense", "csr", "safetensors")),
        *(
            ["export", run, "--to", kind, "-o", str(tmp_path / "file" / f"x{ENDS[kind]}")]
            for kind in ("dense", "csr", "safetensors")
        ),
        ["inspect", str(folder / "topology.safetensors")],
        ["inspect", str(tmp_path / "cut.safetensors")],
        ["inspect", str(tmp_path / "empty.safetensors")],
        ["inspect", str(tmp_path / "nothing")],
        ["inspect", run, "--against", str(tmp_path / "nothing")],
        ["inspect", run, "--pictures", str(tmp_path / "file")],
    ]


def test_what_is_wrong_is_one_line_and_leaves_nothing(wrong, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    for words in wrong:
        with pytest.raises(SystemExit, match="2"):
            main(words)
        told = capsys.readouterr().err
        assert told.startswith("rewire: ")
        assert told.count("\n") == 1, words
        assert ".unfinished" not in told
        assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", list(ENDS))
def test_how_inputs_are_normalised_travels_with_the_file(folder, tmp_path, kind):
    file = tmp_path / f"n{ENDS[kind]}"
    main(["export", str(folder), "--to", kind, "-o", str(file)])
    about = json.loads(rewire.io.read_metadata(file)["input"])
    assert about == {"image": [1, 8, 8], "scale": 255, "mean": [0.3058], "std": [0.3761]}


def test_it_travels_with_shrunk_files_as_well(folder, tmp_path):
    main(["shrink", str(folder), "-o", str(tmp_path / "s.pt")])
    assert json.loads(torch.load(tmp_path / "s.pt", weights_only=True)["input"])["mean"] == [0.3058]
    main(["shrink", str(folder), "-o", str(tmp_path / "s.safetensors")])
    assert json.loads(rewire.io.read_metadata(tmp_path / "s.safetensors")["input"])["std"] == [0.3761]


def test_the_dynamic_dimension_of_onnx_is_called_batch(folder, tmp_path):
    import onnx

    main(["export", str(folder), "--to", "onnx", "-o", str(tmp_path / "n.onnx")])
    graph = onnx.load(tmp_path / "n.onnx").graph
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize(
    ("kind", "name"), [("onnx", "n.pt"), ("csr", "n"), ("dense", "n.npz"), ("safetensors", "n.bin")]
)
def test_a_name_that_does_not_say_what_is_in_the_file_is_refused(folder, tmp_path, kind, name, capsys):
    with pytest.raises(SystemExit):
        main(["export", str(folder), "--to", kind, "-o", str(tmp_path / name)])
    assert f"must end in {ENDS[kind]}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bench_and_pack(folder, capsys, monkeypatch):
    measure = benching.call_times
    monkeypatch.setattr(benching, "call_times", lambda model, x, seconds: measure(model, x, min(seconds, 0.01)))
    main(["bench", str(folder), "--batches", "1", "8", "--seconds", "0.01", "--threads", "1"])
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "8"]
    assert all(float(row[i]) > 0 for row in rows for i in (1, 3, 5))
    main(["pack", str(folder)])
    assert "3 layers packed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", str(folder), "--batches", "0"])


@pytest.mark.parametrize(("times", "warned"), [([1e-3, 1.1e-3, 1.2e-3], False), ([1e-3, 30e-3, 32e-3], True)])
def test_bench_says_when_the_machine_is_too_busy_to_measure(folder, capsys, monkeypatch, times, warned):
    monkeypatch.setattr(benching, "call_times", lambda model, x, seconds: times)
    main(["bench", str(folder), "--batches", "1"])
    text = " ".join(capsys.readouterr().out.split())
    assert ("not to be relied on" in text) == warned


def test_a_file_for_others_does_not_say_where_code_lies_on_this_machine(tmp_path):
    source = "import rewire\n\ndef mine(*, density, every, until):\n"
    (tmp_path / "mine.py").write_text(source + "    return rewire.ggr(density=density, every=every, until=until)\n")
    run = Run(model="mlp", method=f"{tmp_path}/mine.py:mine", epochs=1, limit=100)
    train(run, tmp_path / "run")
    main(["export", str(tmp_path / "run"), "--to", "safetensors", "-o", str(tmp_path / "net.safetensors")])
    content = (tmp_path / "net.safetensors").read_bytes()
    assert run.code[0].digest.encode() in content
    assert str(tmp_path).encode() not in content
