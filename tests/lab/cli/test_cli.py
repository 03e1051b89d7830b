import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.lab.made_up import record, sweep, write

import rewire as rewire_package
from rewire.lab.cli import main as cli
from rewire.lab.report.tables import table1
from rewire.lab.results import claim, folder_of, write_json
from rewire.lab.run import Run
from rewire.lab.training.train import train

REWIRE = [sys.executable, "-c", "from rewire.lab.cli.main import main; main()"]


@pytest.fixture
def rewire(tmp_path, monkeypatch, capsys):
    """The command, in this process: what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words):
        cli.main([*map(str, words)])
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(rewire, capsys):
    """The command, which must fail: its message."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            rewire(*words)
        assert end.value.code == 2
        return capsys.readouterr().err

    return run


def in_a_process(*words, cwd):
    line = [*REWIRE, *map(str, words)]
    wide = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=200, env=wide)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_train_then_runs_then_report(tmp_path, rewire, refused):
    words = ["train", "--model", "mlp", "--epochs", "2", "--limit", "200", "--batch-size", "64", "--out", "r/one"]
    first = in_a_process(*words, cwd=tmp_path)
    for part in ("accuracy", "weights", "inference", "of dense", "empty neurons", "written to", "r/one"):
        assert part in first
    assert "1 done, 0 running, 0 failed, 0 planned" in rewire("runs", "r")
    assert "report.html" in rewire("report", "r")
    assert (tmp_path / "r" / "report.html").exists()
    again = rewire("train", "--resume", "r/one")  # finished: shown, not repeated
    assert "accuracy" in again
    assert "holds another run" in refused(*words, "--seed", "5")


def test_lists(rewire):
    data = rewire("data", "list")
    assert all(name in data for name in ("digits", "cifar100", "tiny-imagenet", "fashion-mnist"))
    methods = rewire("methods")
    assert all(name in methods for name in ("ggr", "granet", "set_rigl", "static"))
    assert "embedded" in rewire("data", "fetch", "digits")


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


def test_no_permission_to_write(tmp_path, refused):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    words = ["train", "--model", "mlp", "--epochs", "1", "--limit", "100", "--out", blocked / "x"]
    assert "file" in refused(*words)


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
    assert "no signal passes through this start" in in_a_process(*words, cwd=tmp_path)


def test_version(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"rewire {rewire_package.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--data", "cifar100", "--data-dir", "."],
        ["train", "--model", "vgg16"],  # too small an image
        ["train", "--model", "mlp", "--sparsity", "0.99999"],  # too few weights
        ["train", "--method", "rigl", "--growth", "random"],
        ["train", "--out", "a/b/c", "--model", "vgg16"],
        ["sweep", "table9"],
        ["sweep", "demo", "--set", "widht=2"],
        ["sweep", "demo", "--seeds", "0"],
        ["sweep", "demo", "--dry-run"],
    ],
    ids=" ".join,
)
def test_what_is_refused_or_only_listed_leaves_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        cli.main(words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["report r", "inspect r/one --json", "methods", "runs r"])
def test_a_reader_that_stops_early(words, tmp_path):
    train(Run(model="mlp", epochs=1, limit=100), tmp_path / "r" / "one")
    code = "from rewire.lab.cli.main import main; import sys; main(sys.argv[1:])"
    line = f"{sys.executable} -c '{code}' {words} | true"  # it has gone before the first line
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=tmp_path, capture_output=True, timeout=200)
    assert done.stderr == b""
    assert done.returncode == 0
    assert words != "report r" or (tmp_path / "r" / "report.html").exists()


def test_runs_show_what_differs_in_80_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    runs = [Run(model="mlp", epochs=8, lr=lr, seed=seed) for lr in (0.1, 0.02) for seed in range(2)]
    for run, status in zip(runs, ("done", "half", "failed", None), strict=True):
        if status is not None:
            write(tmp_path / "r", run, 0.9637, status=status)
    plan = {
        "experiment": "e",
        "command": "c",
        "runs": [run.id for run in runs],
        "plan": [run.to_dict() for run in runs],
    }
    write_json(tmp_path / "r" / "sweep.json", plan)
    with claim(folder_of(tmp_path / "r", runs[1])):
        cli.main(["runs", "r"])
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "all: mlp digits ggr 97% erk" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["lr", "0.1", "seed", "0", "done", "8/8", "96.37%", runs[0].id[:6]] in lines
    assert any(line[:6] == ["lr", "0.1", "seed", "1", "running", "4/8"] for line in lines)
    assert any(line[:5] == ["lr", "0.02", "seed", "0", "failed"] for line in lines)
    assert ["lr", "0.02", "seed", "1", "planned", "0/8", runs[3].id[:6]] in lines
    assert "1 done, 1 running, 1 failed, 1 planned" in text


def test_a_folder_of_an_earlier_version_is_found_by_its_id(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = Run(model="mlp", epochs=1, limit=100)
    train(run, tmp_path / "runs" / "train" / run.id)
    cli.main(["train", "--model", "mlp", "--epochs", "1", "--limit", "100"])
    assert [path.name for path in (tmp_path / "runs" / "train").iterdir()] == [run.id]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("width=0.5", ("width", 0.5)), ("batch-size=32", ("batch_size", 32)), ("limit=none", ("limit", None))],
)
def test_settings_are_read(text, expected):
    from rewire.lab.cli.sweeping import _setting

    assert _setting(text) == expected
    with pytest.raises(ValueError, match="epochs must be a number, not 'many'"):
        _setting("epochs=many")


def test_tables_in_80_columns_keep_their_numbers():
    from rich.console import Console

    from rewire.lab.report.render import to_rich

    runs = [
        Run(data="cifar100", model="mobilenet-v2", method=method, sparsity=s, start=start, seed=seed)
        for method in ("set", "ggr")
        for s in (0.9, 0.97, 0.99)
        for start in ("erk", "uniform", "connected-erk")
        for seed in (0, 1)
    ]
    (table,) = table1([record(run, 0.5 + run.sparsity / 7) for run in runs])
    console = Console(width=80, file=io.StringIO(), record=True)
    for part in to_rich(table, 80):
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for _, cells in table.rows:
        assert all(f"{cell.text} ± {cell.spread}" in text for cell in cells)


@pytest.mark.parametrize("words", ["", "--rows method --columns sparsity,start --baseline ggr", "--rows method,start"])
def test_reports_in_80_columns_keep_means_and_spreads(words, tmp_path, monkeypatch, capsys):
    from rewire.lab.compact import read_runs
    from rewire.lab.report.comparison import Arrangement
    from rewire.lab.report.report import report_tables

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    sweep(tmp_path / "r", seeds=3)
    cli.main(["report", "r", *words.split()])
    text = capsys.readouterr().out
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    options = dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    arrangement = Arrangement.parse(*(options.get(name) for name in ("--rows", "--columns", "--baseline")))
    tables = report_tables(read_runs(Path("r")), arrangement)
    printed = [table for table in tables if not words or table.name.startswith(("grid", "differences"))]
    cells = [cell for table in printed for _, row in table.rows for cell in row]
    assert sum(bool(cell.spread) for cell in cells) > 10
    assert all((f"{cell.text} ± {cell.spread}" if cell.spread else cell.text) in text for cell in cells)


@pytest.mark.parametrize("words", ["methods", "models", "experiments", "data list", "inspect r/one", "runs r"])
def test_lists_in_80_columns_cut_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    if " r" in words:
        train(Run(model="mlp", epochs=1, limit=100), tmp_path / "r" / "one")
        capsys.readouterr()
    cli.main(words.split())
    text = capsys.readouterr().out
    assert text
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
