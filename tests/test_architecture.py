"""The shape of the code: imports point one way, files stay short, every method has its card."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rewire

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rewire"

# From the ground up: a module imports only from floors below its own. Modules on one floor do not import each other,
# except within a folder that is one idea (lab).
FLOORS = [
    ["choose", "topology", "kernels.build", "kernels.geometry"],
    ["kernels.library", "kernels.memory", "kernels.plan", "kernels.planes", "kernels.reference"],
    ["kernels.program", "kernels.norm", "kernels.pooling"],
    ["kernels.single"],
    ["kernels.ops"],
    ["ranks"],
    ["layer"],
    ["select", "parts.start", "parts.drop", "parts.allocate", "parts.grow", "parts.schedule"],
    ["method"],
    ["methods", "reachability"],
    ["stores.flat", "stores.shards"],
    ["stores.optimizer"],
    ["stores.modules", "stores.store"],
    ["stores.masked_layer", "stores.twins"],
    ["stores.masked"],
    ["stores.packed"],
    ["checkpoint", "table", "distributed.group"],
    ["distributed.shards"],
    ["distributed.peers"],
    ["rewirer"],
    ["attach", "distributed.saving"],
    [
        *("analysis.flops", "analysis.dead_units", "analysis.overlap", "analysis.scale"),
        *("compressed", "extras", "one_sample", "plain", "resize"),
    ],
    ["analysis.density", "files", "packed_graph"],
    ["inference"],
    ["export"],
    ["integrations.attachment"],
    ["integrations.lightning", "integrations.transformers"],
    ["shrinking.values"],
    ["shrinking.graph"],
    ["shrinking.rules"],
    ["shrinking.layers"],
    ["shrinking.plan"],
    ["shrinking.cut"],
    ["shrinking.shrink"],
    ["lab"],
]
FOLDERS = ("", "analysis", "distributed", "integrations", "kernels", "lab", "parts", "shrinking", "stores")
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name, path


def floor(name):
    return FLOOR["lab" if name.split(".")[0] == "lab" else name]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rewire":
            inner = node.module.removeprefix("rewire").lstrip(".")
            yield from (
                [inner] if inner not in FOLDERS else [f"{inner}.{alias.name}".lstrip(".") for alias in node.names]
            )


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_point_downwards(name, path):
    for used in imports(path):
        same_idea = name.startswith("lab.") and (used.startswith("lab") or used not in FLOOR)
        assert same_idea or floor(used) < floor(name), f"{name} imports {used}"


@pytest.mark.parametrize(
    "path", [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
)
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 320, path


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
    assert sorted(rewire.__all__) == sorted(rewire._HOME)
    assert all(hasattr(rewire, name) for name in rewire.__all__)
    assert set(rewire.__all__) <= set(dir(rewire))
    with pytest.raises(AttributeError, match="no attribute 'sparsifi'"):
        _ = rewire.sparsifi


def test_importing_the_package_does_not_import_torch():
    code = "import sys, rewire; assert 'torch' not in sys.modules; rewire.sparsify; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
