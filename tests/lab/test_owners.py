"""One owner per fact: the lab knows no method, store, data set or network by its name, except where runs are listed."""

import ast
from pathlib import Path

import pytest

import rewire.lab
from rewire.attach import STORES
from rewire.lab.data.source import DATASETS
from rewire.lab.models import MODELS
from rewire.methods import METHODS

FOLDER = Path(rewire.lab.__file__).parent
NAMES = {*METHODS, *STORES, *DATASETS, *MODELS, "dense"}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_name_is_compared(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            words = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            assert not {word for word in words if isinstance(word, str)} & NAMES, f"{path}:{node.lineno}"
