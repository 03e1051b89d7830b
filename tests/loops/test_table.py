"""docs/loops.md: every row names tests that exist, and its examples run."""

import ast
import re
from pathlib import Path

import pytest
from tests.test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"
LINKS = re.compile(r"\[[^]]+\]\(([^)]+\.py)\)((?: `test_\w+`)+)")
TRIED = (
    *(
        "EMA",
        "SWA",
        "SAM",
        "Lion",
        "Muon",
        "schedule-free",
        "fused",
        "foreach",
        "GradScaler",
        "accumulation",
        "closures",
    ),
    *("checkpointing", "torch.compile", "deepcopy", "pickle", "fork", "threads", "DataLoader"),
)


def rows():
    table = PAGE.read_text().split("## What was tried")[1].split("## ")[0]
    return [line for line in table.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_a_row_says_what_happens_in_each_store_and_names_its_tests(row):
    _, what, masked, packed, tests, _ = row.split("|")
    assert all(cell.strip() for cell in (what, masked, packed))
    links = LINKS.findall(tests)
    assert links
    for file, names in links:
        tree = ast.parse((PAGE.parent / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert set(re.findall(r"test_\w+", names)) <= functions


@pytest.mark.parametrize("what", TRIED)
def test_everything_is_in_the_table(what):
    assert any(what in row.split("|")[1] for row in rows())


def test_the_examples_run():
    namespace = {}
    for block in blocks(PAGE):
        exec(block, namespace)
