"""The shape of the code: imports point one way, files stay short, every method has its card."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rewire
from rewire import _moved

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rewire"

# From the bottom up: a module imports from its own layer and from those below it.
LAYERS = {
    "support": ["_extras", "_lookup", "_moved", "_torch"],
    "core": ["core"],
    "parts": ["parts", "methods"],
    "tools": ["kernels", "model", "distributed"],
    "storage": ["nn", "stores"],
    "attachment": ["rewirer", "attach"],
    "uses": ["io", "inference", "analysis", "shrinking", "integrations", "film"],
    "lab": ["lab"],
}
LAYER = {room: height for height, rooms in enumerate(LAYERS.values()) for room in rooms}


def modules():
    """Every module by its dotted name; a package's own file only gathers names and is left out."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if path.name != "__init__.py":
            yield name, path


MODULES = dict(modules())


def imports(path):
    """The modules of this package that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rewire":
            package = node.module.removeprefix("rewire").lstrip(".")
            if package in MODULES:
                yield package
            else:
                inside = [f"{package}.{alias.name}".lstrip(".") for alias in node.names]
                yield from (one for one in inside if one in MODULES)


def cycle(edges):
    """Some cycle of a graph, or nothing."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        found = next(filter(None, map(visit, sorted(edges.get(node, ())))), [])
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(edges))), [])


def folder_edges(parent):
    """Which folder, or file, directly inside a folder imports which other one there."""
    edges = {}
    depth = len(parent.split(".")) if parent else 0
    inside = {name: path for name, path in MODULES.items() if not parent or name.startswith(parent + ".")}
    for name, path in inside.items():
        for used in imports(path):
            one, other = name.split(".")[depth], used.split(".")[depth] if used in inside else None
            if other is not None and one != other:
                edges.setdefault(one, set()).add(other)
    return edges


@pytest.mark.parametrize(("name", "path"), list(MODULES.items()))
def test_imports_point_downwards(name, path):
    for used in imports(path):
        assert LAYER[used.split(".")[0]] <= LAYER[name.split(".")[0]], f"{name} imports {used}"


@pytest.mark.parametrize("folder", ["", *sorted({name.rpartition(".")[0] for name in MODULES} - {""})])
def test_nothing_imports_in_a_circle(folder):
    assert not cycle(folder_edges(folder))


def test_a_circle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not cycle({"a": {"b", "c"}, "b": {"c"}})


@pytest.mark.parametrize(
    "path", [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
)
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 320, path


@pytest.mark.parametrize("path", sorted((SOURCE / "kernels" / "native").glob("*.[ch]pp")), ids=lambda path: path.name)
def test_native_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_functions_stay_short(name, path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, f"{name}.{node.name}"


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_every_method_has_a_card(name):
    card = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    for part in ("## Use", "## Settings", "## Details", "## Attribution"):
        assert part in card


def test_every_public_name_is_there():
    rooms = {name for name in rewire.__all__ if isinstance(getattr(rewire, name), ModuleType)}
    methods = {entry.function.__name__ for entry in rewire.METHODS.values()}
    assert methods <= set(rewire.__all__)
    assert len(set(rewire.__all__) - rooms - methods) <= 12
    assert set(rewire.__all__) <= set(dir(rewire))
    with pytest.raises(AttributeError, match="no attribute 'sparsifi'"):
        _ = rewire.sparsifi


@pytest.mark.parametrize("name", [*_moved.NAMES, *_moved.RENAMED])
def test_an_old_name_still_works_and_says_where_it_is_now(name):
    home, now = _moved.RENAMED.get(name) or (_moved.NAMES[name], name)
    with pytest.warns(DeprecationWarning, match=f"rewire.{name} has moved to {home}.{now}"):
        old = getattr(rewire, name)
    assert old is getattr(importlib.import_module(home), now)


@pytest.mark.parametrize(("old", "homes"), list(_moved.MODULES.items()))
def test_an_old_module_still_imports_and_says_where_it_is_now(old, homes):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {' and '.join(homes)}"):
        module = importlib.import_module(old)
    for home in homes:
        found = importlib.import_module(home)
        name = next(
            name
            for name in vars(found)
            if (not name.startswith("_") and callable(getattr(found, name))) or name.isupper()
        )
        assert getattr(module, name) is getattr(found, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_importing_the_package_does_not_import_torch():
    code = "import sys, rewire; assert 'torch' not in sys.modules; rewire.sparsify; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
