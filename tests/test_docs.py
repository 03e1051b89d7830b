"""What the documents show runs, and what their tables of settings say is what the code does."""

import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch

import rewire

ROOT = Path(__file__).parents[1]
CARDS = ROOT / "docs" / "methods"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{page}.md" for page in ("idea", "optimizers", "packed", "scale", "shipping", "structure")),
    *sorted(CARDS.glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIP = "# not run"


def blocks(page):
    """The Python blocks of a page, padded so that a traceback names the line of the page."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        code = found[1]
        if code.partition("\n")[0].strip() != SKIP:
            yield compile("\n" * text.count("\n", 0, found.start(1)) + code, str(page), "exec")


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.stem)
def test_the_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks(page):
            exec(block, namespace)


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_a_card_has_its_sections_and_an_example(name):
    card = CARDS / f"{name}.md"
    headings = re.findall(r"^#+ .*$", BLOCK.sub("", card.read_text()), re.MULTILINE)
    assert headings[0].startswith("# ")
    assert headings[1:] == ["## Use", "## Settings", "## Details", "## Attribution"]
    assert list(blocks(card))


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_the_settings_of_a_card_are_those_of_the_function(name):
    settings = (CARDS / f"{name}.md").read_text().split("## Settings")[1].split("## Details")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", settings, re.MULTILINE))
    parameters = inspect.signature(rewire.METHODS[name]).parameters.values()
    assert shown == {p.name: "required" if p.default is p.empty else f"`{p.default!r}`" for p in parameters}


def test_a_block_that_says_so_is_skipped(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n# not run\n1 / 0\n```\n\n```python\nx = 1\n```\n```sh\nfalse\n```\n")
    assert len(list(blocks(page))) == 1
