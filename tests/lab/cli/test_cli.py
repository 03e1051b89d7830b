import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewire.lab.cli import main as cli

REWIRE = [sys.executable, "-c", "from rewire.lab.cli.main import main; main()"]


def rewire(*words, cwd, check=True):
    line = [*REWIRE, *map(str, words)]
    wide = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=200, env=wide)
    assert not check or done.returncode == 0, done.stderr
    return done


def refused(*words, cwd):
    done = rewire(*words, cwd=cwd, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_help_comes_without_torch(tmp_path):
    code = "import sys; from rewire.lab.cli.main import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    for name in cli.COMMANDS:
        assert f"  {name}" in done.stdout


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_shows_examples(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.parse(cli.COMMANDS[name][0], [name, "--help"])
    assert end.value.code == 0
    assert f"Examples:\n  rewire {name}" in capsys.readouterr().out


def test_train_then_runs_then_report(tmp_path):
    words = ["train", "--model", "mlp", "--epochs", "2", "--limit", "200", "--batch-size", "64", "--out", "r/one"]
    first = rewire(*words, cwd=tmp_path).stdout
    for part in ("accuracy", "weights", "inference", "of dense", "empty neurons", "written to", "r/one"):
        assert part in first
    assert "1 done, 0 running, 0 failed, 0 planned" in rewire("runs", "r", cwd=tmp_path).stdout
    assert "report.html" in rewire("report", "r", cwd=tmp_path).stdout
    assert (tmp_path / "r" / "report.html").exists()
    again = rewire("train", "--resume", "r/one", cwd=tmp_path).stdout  # finished: shown, not repeated
    assert "accuracy" in again
    assert "holds another run" in refused(*words, "--seed", "5", cwd=tmp_path)


def test_lists(tmp_path):
    data = rewire("data", "list", cwd=tmp_path).stdout
    assert all(name in data for name in ("digits", "cifar100", "tiny-imagenet", "fashion-mnist"))
    methods = rewire("methods", cwd=tmp_path).stdout
    assert all(name in methods for name in ("ggr", "granet", "set_rigl", "static"))
    assert "embedded" in rewire("data", "fetch", "digits", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'"),
        (["train", "--sparsity", "1.5"], "sparsity is the share of weights that do not exist"),
        (["train", "--method", "grg"], "unknown method 'grg'. Did you mean 'ggr'"),
        (["train", "--model", "vgg-smal"], "unknown network 'vgg-smal'. Did you mean 'vgg-small'"),
        (["train", "--device", "cuda:7"], "--device cuda:7 cannot be used here"),
        (["train", "--data", "cifar100", "--data-dir", "."], "cifar100"),
        (["train", "--resume", "nothing"], "nothing is not the folder of a run"),
        (
            ["train", "--store", "packed", "--method", "snfs"],
            "snfs reads momentum, which the packed store cannot supply",
        ),
        (["train", "--store", "paked"], "unknown store 'paked'. Did you mean 'packed'"),
        (["sweep", "table9"], "unknown experiment 'table9'. Did you mean 'table"),
        (["sweep", "demo", "--workers", "0"], "--workers must be at least 1, not 0"),
        (["sweep", "demo", "--address", "auto"], "--address and --gpus are for --engine ray"),
        (["sweep", "demo", "--engine", "ray", "--device", "cuda:1"], "--device cuda, not cuda:1"),
        (["sweep", "demo", "--engine", "ray", "--cpus", "0"], "cpus must be greater than 0, not 0"),
        (["report", "nowhere"], "nowhere is not a folder of results: it does not exist"),
        (["report", "."], "holds no runs"),
        (["runs", "."], "holds no runs"),
        (["data", "fetch", "mnist"], "unknown data set 'mnist'. Did you mean 'fashion-mnist'"),
        (["data", "fetch"], "name the data set to download"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_clear_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(Path().glob("**/result.json"))


def test_no_permission_to_write(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    words = ["train", "--model", "mlp", "--epochs", "1", "--limit", "100", "--out", blocked / "x"]
    assert "file" in refused(*words, cwd=tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to stand for a full disk")
def test_no_space_left(tmp_path, monkeypatch, capsys):
    """The checkpoint is written to a device that is always full."""
    from rewire.lab.training import checkpoints

    def full(tensors, name, **rest):
        with open("/dev/full", "wb", 0) as file:
            file.write(b"x")

    real = checkpoints.save_file
    monkeypatch.setattr(checkpoints, "save_file", full)
    words = ["train", "--model", "mlp", "--epochs", "1", "--limit", "100", "--out", str(tmp_path / "r")]
    with pytest.raises(SystemExit):
        cli.main(words)
    assert "No space left" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "r").iterdir() if path.name.startswith(".")]
    monkeypatch.setattr(checkpoints, "save_file", real)
    cli.main(words)  # with space again, the same command goes on
    assert (tmp_path / "r" / "result.json").exists()


def test_the_warning_of_a_dead_start_is_shown(tmp_path):
    words = ["train", "--model", "mlp", "--epochs", "1", "--limit", "100", "--sparsity", "0.9998", "--start", "uniform"]
    assert "no signal passes through this start" in rewire(*words, cwd=tmp_path).stdout
