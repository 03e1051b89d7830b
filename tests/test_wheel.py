"""A wheel of this checkout works in an environment of its own, from another folder, without a compiler.

``make wheel`` builds the wheel to be published from the sdist; ``REWIRE_WHEEL=dist/...whl`` tests that one.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from rewire.kernels import build

ROOT = Path(__file__).parents[1]
PACKAGES = sysconfig.get_path("purelib")  # torch and the others, which are not installed a second time
LINUX = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
BUILT = all(build.is_current(build.library_path(isa), isa) for isa in build.instruction_sets())
pytestmark = [
    pytest.mark.skipif(not LINUX, reason="wheels with kernels are made for Linux"),
    pytest.mark.skipif(not BUILT, reason="the native kernels are not built from these sources"),
]

TRAINING = """
import re, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
import torch
import rewire
assert Path(rewire.__file__).is_relative_to(sys.prefix), rewire.__file__
assert rewire.kernels.info()["isa"] != "reference"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.1, every=5, until=15), store="packed")
x, y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
losses = []
for _ in range(20):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
assert losses[-1] < losses[0] - 0.1, losses
assert len(rewirer.history) == 2, rewirer.history
runtimes = set(re.findall(r"\\S*/libg?i?omp\\S*", Path("/proc/self/maps").read_text()))
assert len(runtimes) == 1 and Path(torch.__file__).parent in Path(*runtimes).parents, runtimes
"""


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, with auditwheel's verdict in its name."""
    if named := os.environ.get("REWIRE_WHEEL"):
        return Path(named).absolute()
    pytest.importorskip("auditwheel")
    folder = tmp_path_factory.mktemp("wheel")
    project = folder / "project"
    project.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy2(ROOT / name, project)
    shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder / "plain", project)
    (plain,) = (folder / "plain").iterdir()
    platform_tag = f"manylinux_2_28_{platform.machine()}"
    scripts = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ("repair", "--plat", platform_tag, "--only-plat", "-w", folder / "repaired", plain)
    run(sys.executable, "-m", "auditwheel", *words, env=os.environ | scripts)
    (repaired,) = (folder / "repaired").iterdir()
    return repaired


def test_one_wheel_serves_all_pythons_and_brings_no_other_library(wheel):
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{platform.machine()}.whl")
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [name for name in names if ".so" in Path(name).name]
    assert sorted(libraries) == sorted(f"rewire/kernels/librewire_{isa}.so" for isa in build.instruction_sets())
    assert {f"rewire/kernels/native/{source.name}" for source in build.sources()} <= set(names)
    assert "rewire/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "build", "docs"))]


def install(wheel, python, folder):
    """Install as README says, from a folder with ``dist/``; packages that it depends on are not fetched."""
    (folder / "dist").mkdir()
    shutil.copy2(wheel, folder / "dist")
    command = re.search(r"^(pip install .*\[lab\]\S*)", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    pip = f'pip() {{ "{sys.executable}" -m pip --python "{python}" "$@"; }}\n'
    alone = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run("sh", "-c", pip + command, cwd=folder, env=os.environ | alone)


def test_the_wheel_works_in_a_fresh_environment_without_a_compiler(wheel, tmp_path):
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install(wheel, python, tmp_path)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{PACKAGES}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # No compiler, no PYTHONPATH, no settings of ours.
    environment = {"PATH": str(home / "bin"), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    run(python, "-c", TRAINING, cwd=elsewhere, env=environment)
    found = json.loads(run(home / "bin" / "rewire", "doctor", "--json", cwd=elsewhere, env=environment))
    assert found["healthy"] is True
    assert Path(found["folder"]).is_relative_to(home)
    assert {check["name"]: check["state"] for check in found["checks"]}["compiler"] == "missing"
