"""What a run records about the code and the machine."""

import subprocess

import pytest

from rewire.kernels import info
from rewire.lab.environment import code_commit, environment


def git(folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one tracked file."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "module.py").write_text("a = 1\n")
    git(tmp_path, "add", "module.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_the_commit_of_a_checkout(checkout):
    head = git(checkout, "rev-parse", "HEAD")
    assert code_commit.__wrapped__(checkout / "module.py") == head
    (checkout / "module.py").write_text("a = 2\n")
    assert code_commit.__wrapped__(checkout / "module.py") == f"{head}-dirty"


def test_an_installed_package_has_no_commit(checkout, tmp_path_factory):
    """Not even that of the project whose folder holds the virtual environment."""
    installed = checkout / ".venv" / "module.py"
    installed.parent.mkdir()
    installed.write_text("a = 1\n")
    assert code_commit.__wrapped__(installed) is None
    assert code_commit.__wrapped__(tmp_path_factory.mktemp("plain") / "module.py") is None


def test_the_instruction_set_is_recorded():
    assert environment("cpu")["kernels"] == info()["isa"]
