"""Every line of every block of commands in these pages is run, in order: the commands that the documents print work.

Lines run as they are printed, with settings appended that make them small. `make demo` is replaced by its recipe. What
a test cannot run is listed, with what runs it instead.
"""

import glob
import re
import shlex
from pathlib import Path

import pytest
from tests.lab import made_up

from rewire.lab.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    *sorted(f"docs/tutorials/{path.name}" for path in ROOT.glob("docs/tutorials/*")),
]
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SMALL = ["--epochs", "1", "--set", "limit=64", "--set", "width=0.25", "--seeds", "1"]
SMALLER = {  # the first words of a command: what is appended to it
    "rewire train": ["--epochs", "2", "--limit", "64", "--width", "0.25"],
    "rewire sweep demo": SMALL,
    "rewire sweep table1": ["--dry-run"],
}
ELSEWHERE = {  # the first words of a command: what runs it
    "make wheel": "tests/test_wheel.py",
    "pip install": "tests/test_wheel.py",
    "make test": ".ci/run",
}


def starts(line, table):
    """The entry of a table whose key the line begins with."""
    return next((table[key] for key in table if f"{line} ".startswith(f"{key} ")), None)


def commands(text):
    """The lines of all blocks of commands, without comments."""
    for language, block in BLOCK.findall(text):
        for line in block.splitlines() if language in ("", "sh") else ():
            if words := shlex.split(line, comments=True):
                yield shlex.join(words)


def demo():
    """The recipe of `make demo`, as it would be typed."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    return [line.strip().removeprefix("@").replace("$(BIN)/", "") for line in recipe.splitlines()]


def run(line):
    if line == "make demo":
        for step in demo():
            run(step)
        for name in ("report.html", "film.html"):
            assert Path("runs/demo-demo", name).stat().st_size > 10_000
    elif starts(line, ELSEWHERE) is None:
        program, *words = (word for pattern in shlex.split(line) for word in sorted(glob.glob(pattern)) or [pattern])
        assert program == "rewire", f"nothing runs `{line}`: add it to ELSEWHERE"
        main([*words, *(starts(line, SMALLER) or [])])


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(page, tmp_path, monkeypatch, one_thread):
    lines = list(commands((ROOT / page).read_text()))
    monkeypatch.chdir(tmp_path)
    for line in lines:
        if line == "rewire report runs/table1-laptop":
            made_up.sweep(Path("runs/table1-laptop"))  # the sweep before it takes hours
        run(line)


def test_the_page_for_contributors_shows_commands_of_the_readme():
    shown = set(commands((ROOT / "CONTRIBUTING.md").read_text()))
    assert shown
    assert shown <= set(commands((ROOT / "README.md").read_text()))


def test_what_is_run_elsewhere_exists():
    for place in ELSEWHERE.values():
        assert (ROOT / place).exists()
    wheel = (ROOT / "tests" / "test_wheel.py").read_text()
    assert "make wheel" in wheel
    assert "pip install" in wheel
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_begins_with_the_installation():
    first = next(commands((ROOT / "README.md").read_text()))
    assert first == "make wheel"
    assert {"rewire doctor", "make demo", "make test"} <= set(commands((ROOT / "README.md").read_text()))


def test_the_demo_ends_with_a_table_a_report_and_a_film():
    sweep, *_, watch = demo()
    assert sweep == "rewire sweep demo --film"
    assert watch.endswith("--save runs/demo-demo/film.html")
