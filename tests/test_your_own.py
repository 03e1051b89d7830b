"""``docs/your-own.md`` is run as a reader would: its files are written, its commands are typed."""

import json
import re
import shlex
from pathlib import Path

import pytest

from rewire.lab.cli.main import main
from rewire.lab.results import read_plan, read_records

PAGE = Path(__file__).parents[1] / "docs" / "your-own.md"
FILE = re.compile(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    for name, content in FILE.findall(PAGE.read_text()):
        (path / name).write_text(content)
    return path


def commands():
    return [line for block in SHELL.findall(PAGE.read_text()) for line in block.splitlines()]


def test_the_page_can_be_followed(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    printed = {}
    for line in commands():
        program, *words = shlex.split(line)
        assert program == "rewire"
        main(words)
        printed[line] = capsys.readouterr().out
    assert len(printed) == len(commands()) == 7
    runs = read_records(folder / "runs" / "compare")
    assert len(runs) == 12
    assert {one.status for one in runs} == {"done"}
    assert {(one.run.width, one.run.epochs) for one in runs} == {(0.5, 4)}
    report = next(text for line, text in printed.items() if line.startswith("rewire report"))
    assert "Difference from GGR" in report
    assert "saliency" in report
    assert re.search(r"[+-]\d+\.\d\d ± \d+\.\d\d", report)
    assert "…" not in report
    assert all(len(line) <= 80 for text in printed.values() for line in text.splitlines())
    page = (folder / "runs" / "compare" / "report.html").read_text()
    assert "Difference from GGR" in page


def test_the_record_says_which_code_was_used(folder):
    records = [one for one in read_plan(folder / "runs" / "compare") if one.run.method != "ggr"]
    (code,) = records[0].run.code
    assert (code.role, code.name, code.path) == ("method", "saliency.py:saliency", str(folder / "saliency.py"))
    stored = json.loads((records[0].folder / "run.json").read_text())["run"]["code"]
    assert stored[0]["digest"] == code.digest
    assert json.loads((folder / "runs" / "compare" / "sweep.json").read_text())["code"]["name"] == "compare.py:compare"


def test_a_folder_whose_code_is_gone_is_still_listed_and_reported(folder, capsys):
    runs = str(folder / "runs" / "compare")
    source = folder / "saliency.py"
    text = source.read_text()
    try:
        source.unlink()
        main(["runs", runs])
        listed = capsys.readouterr().out
        assert "12 done" in listed
        assert listed.count("missing)") == 6  # the note of a long label goes on in a second line
        main(["report", runs])
        assert "saliency" in capsys.readouterr().out
        assert "saliency.py:saliency is missing" in (folder / "runs" / "compare" / "report.html").read_text()
        source.write_text(text + "\n# changed")
        main(["runs", runs])
        assert capsys.readouterr().out.count("changed)") == 6
    finally:
        source.write_text(text)


def test_a_run_is_not_continued_with_other_code(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["train", "--method", "saliency.py:saliency", "--model", "mlp", "--epochs", "2", "--limit", "100"]
    main([*words, "--out", "again"])
    (folder / "again" / "result.json").unlink()
    text = (folder / "saliency.py").read_text()
    try:
        (folder / "saliency.py").write_text(text.replace("lowest.", "lowest!"))
        with pytest.raises(SystemExit):
            main(["train", "--resume", "again"])
        assert "saliency.py:saliency has changed since the run began" in capsys.readouterr().err
    finally:
        (folder / "saliency.py").write_text(text)
    main(["train", "--resume", "again"])
    assert "accuracy" in capsys.readouterr().out
