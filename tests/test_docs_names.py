"""Every path, name, link and command that the documents mention exists."""

import importlib
import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"python (?:-m ([\w.]+)|([\w./]+\.py))")
NAME = re.compile(r"rewire(?:\.\w+)+")
PROMISED = {"models-tried.md"}  # written by `make zoo`
ENTRY_POINTS = re.compile(r"rewire\.(?:methods|datasets|models|experiments)")  # groups of a user's own package


@cache
def files():
    """Every file of the repository, committed or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:  # an unpacked archive
        return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def prose(page):
    return FENCED.sub("", page.read_text())


def spans(page):
    """What stands between backticks."""
    return [found[1] for found in SPAN.finditer(prose(page))]


def is_example(page, text):
    """A file that the page asks its reader to write: a bare name that is also in its blocks, or right before one."""
    blocks = "".join(FENCED.findall(page.read_text()))
    return "/" not in text and (text in blocks or f"`{text}`:\n\n```" in page.read_text())


def is_known_path(text):
    """A path from the root of the repository, or the last parts of one; a folder ends with a slash."""
    pattern = "/" + text.removeprefix("./").rstrip("/").replace("*", "[^/]*")
    found = re.compile(
        re.sub(r"\.(?=\w)", r"\\.", pattern) + ("(/|$)" if text.endswith("/") or "." not in text else "$")
    )
    return any(found.search("/" + name) for name in files())


def resolve(name):
    """A module, or an attribute of one."""
    module, rest = importlib.import_module("rewire"), name.split(".")[1:]
    for depth, part in enumerate(rest):
        try:
            module = getattr(module, part)
        except AttributeError:
            module = importlib.import_module(".".join(["rewire", *rest[: depth + 1]]))
    return module


def ids(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_path_exists(page):
    rooted = re.compile(r"(?:src|tests|docs|examples|benchmarks)/\S*")
    file = re.compile(r"[\w./*-]+\.(?:py|cpp|hpp|md|css|toml|json)")
    made = re.compile(r"runs/|results?\.json|run\.json|error\.json|files-|benchmarks/results/|small\.|trainer_state")
    for text in spans(page):
        if (rooted.fullmatch(text) or file.fullmatch(text)) and not made.search(text) and not is_example(page, text):
            assert is_known_path(text), f"there is no {text}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_name_of_the_package_exists(page):
    for text in spans(page):
        for name in NAME.findall(text):
            if not ENTRY_POINTS.fullmatch(name):
                resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in target or Path(path).name in PROMISED:
            continue
        file = (page.parent / path) if path else page
        assert file.exists(), f"there is no {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(file), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_command_runs_something_that_exists(page):
    for module, script in COMMAND.findall(page.read_text()):
        if script:
            assert (ROOT / script).exists(), f"there is no {script}"
        else:
            assert importlib.util.find_spec(module) is not None, f"there is no module {module}"


def test_what_does_not_exist_is_noticed():
    assert is_known_path("src/rewire/parts/")
    assert is_known_path("parts/drop.py")
    assert is_known_path("docs/methods/*.md")
    assert not is_known_path("src/rewire/part/")
    assert not is_known_path("rop.py")
    assert not is_known_path("parts/dropped.py")
    resolve("rewire.parts.Lowest")
    resolve("rewire.io.sparse_file.load_sparse")
    with pytest.raises((AttributeError, ImportError)):
        resolve("rewire.parts.Highest")
