"""``make compat`` tests the lower ends of the ranges in pyproject.toml, and the workflow runs it."""

import re
from pathlib import Path

import pytest
from tests.oldest import constraints, pinned

ROOT = Path(__file__).parents[1]


def test_a_lower_bound_is_the_version():
    assert pinned("numpy>=2") == "numpy==2"
    assert pinned("torch>=2.7,<3") == "torch==2.7"


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==2", "numpy~=2.1"])
def test_a_requirement_without_a_lower_bound_is_refused(requirement):
    with pytest.raises(ValueError, match=f"'{requirement}' in pyproject.toml has no lower bound"):
        pinned(requirement)


def test_the_library_and_the_lab_are_pinned():
    names = {line.split("==")[0] for line in constraints()}
    assert {"torch", "numpy", "tyro", "safetensors"} <= names


def test_every_folder_of_the_target_exists():
    tests = re.search(r"^COMPAT_TESTS := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    paths = [path for path in tests.replace("\\", " ").split() if path.startswith("tests")]
    assert len(paths) > 10
    assert all((ROOT / path).exists() for path in paths)


def test_the_workflow_runs_the_target():
    assert "make compat" in (ROOT / ".github" / "workflows" / "test.yml").read_text()
