"""Code of one's own: where it is found, what is recorded, and what happens when it is missing or broken."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from rewire.lab import registry as registry_module
from rewire.lab.data.datasets import load
from rewire.lab.data.source import Dataset
from rewire.lab.models import build
from rewire.lab.names import METHODS
from rewire.lab.references import MissingCodeError, helpers, state
from rewire.lab.run import Run

METHOD = """
import rewire
def mine(*, density, every, until):
    "Mine."
    return rewire.rigl(density=density, every=every, until=until)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ideas" / "mine.py"
    path.parent.mkdir()
    path.write_text(METHOD)
    return path


def test_a_file_is_the_same_code_wherever_it_lies(file, tmp_path):
    copy = tmp_path / "copy" / "mine.py"
    copy.parent.mkdir()
    copy.write_text(METHOD)
    one, other = Run(method=f"{file}:mine"), Run(method=f"{copy}:mine")
    assert one.method == "mine.py:mine"
    assert one == other
    assert one.id == other.id
    copy.write_text(METHOD + "\n")
    assert Run(method=f"{copy}:mine").id != one.id


def test_a_run_with_own_code_survives_json_and_the_command_line(file):
    run = Run(method=f"{file}:mine", seed=2)
    again = Run.from_dict(run.to_dict())
    assert again == run
    assert again.id == run.id
    assert again.code[0].path == str(file)
    assert Run(method=run.arguments()[run.arguments().index("--method") + 1], seed=2) == run


def test_a_module_of_a_package(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent.parent))
    run = Run(method="ideas.mine:mine")
    assert run.method == "ideas.mine:mine"
    assert run.code[0].path == str(file)
    assert run.entry("method").example().signals
    sys.modules.pop("ideas.mine")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:mine", "nowhere.py does not exist"),
        ("{file}:your", "has no function 'your'; it has mine"),
        ("no_such_package.module:mine", "cannot be imported .*install its package"),
    ],
)
def test_what_is_not_there_is_said(file, reference, message):
    with pytest.raises(ValueError, match=message):
        Run(method=reference.format(file=file))


def test_a_file_that_cannot_be_imported(file):
    file.write_text("1 / 0")
    with pytest.raises(ValueError, match=r"mine.py cannot be imported: ZeroDivisionError"):
        Run(method=f"{file}:mine")


def test_options_that_an_own_method_does_not_take_are_refused(file):
    with pytest.raises(ValueError, match="fraction 0.2 is an option that mine.py:mine does not use"):
        Run(method=f"{file}:mine", fraction=0.2)


def test_code_that_is_missing_stops_training_and_not_reading(file):
    run = Run(method=f"{file}:mine")
    file.unlink()
    again = Run.from_dict(run.to_dict())
    assert again.label == "vgg-small digits mine 97% erk seed 0"
    with pytest.raises(MissingCodeError, match="does not exist"):
        again.entry("method")


def test_packages_register_under_entry_points(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    point = EntryPoint("packaged", "mine:mine", "rewire.methods")
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [point] if group == point.group else [])
    assert "packaged" in METHODS.names()
    run = Run(method="packaged")
    assert run.method == "packaged"
    assert run.code[0].path == str(file)
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [])
    with pytest.raises(MissingCodeError, match="'packaged' is not registered here"):
        Run.from_dict(run.to_dict()).entry("method")
    sys.modules.pop("mine", None)


DATA = """
import numpy as np, torch
from PIL import Image
rng = np.random.default_rng(0)
def arrays(): return (rng.random((20, 6, 5), np.float32), np.arange(20) % 3), (rng.random((6, 6, 5)), np.arange(6) % 3)
def vectors(): return (rng.random((20, 7)), np.arange(20) % 2), (rng.random((6, 7)), np.arange(6) % 2)
def pictures():
    sample = lambda i: (Image.fromarray(np.full((4, 5, 3), i, np.uint8)), i % 2)
    return [sample(i) for i in range(8)], [sample(i) for i in range(4)]
def columns():
    part = [{"img": Image.fromarray(np.full((4, 5), i, np.uint8)), "label": i % 2} for i in range(8)]
    return {"train": part, "test": iter(part[:4])}
def tensors(): return [(torch.rand(3, 4, 4), 1), (torch.rand(3, 4, 4), 0)], [(torch.rand(3, 4, 4), 1)]
def folder(data_dir): return ([(torch.zeros(1, 2, 2), len(str(data_dir)))] * 2,) * 2
def wrong(): return 3
def sizes(): return [(torch.rand(1, 4, 4), 0), (torch.rand(1, 5, 5), 0)], [(torch.rand(1, 4, 4), 1)]
def unlike(): return (np.zeros((4, 3, 3)), np.zeros(4)), (np.zeros((4, 3, 4)), np.zeros(4))
"""


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(DATA)
    return lambda name, **options: load(f"{path}:{name}", **options)


@pytest.mark.parametrize(
    ("name", "image", "dtype", "classes"),
    [
        ("arrays", (1, 6, 5), torch.float32, 3),
        ("vectors", (1, 1, 7), torch.float32, 2),
        ("pictures", (3, 4, 5), torch.uint8, 2),
        ("columns", (1, 4, 5), torch.uint8, 2),
        ("tensors", (3, 4, 4), torch.float32, 2),
    ],
)
def test_what_a_data_set_may_return(data, name, image, dtype, classes):
    found = data(name)
    assert isinstance(found, Dataset)
    assert (found.image, found.train_images.dtype, found.classes) == (image, dtype, classes)
    assert found.train_labels.dtype == torch.int64
    scale = 255 if dtype == torch.uint8 else 1
    expected = found.train_images.double().mean((0, 2, 3)) / scale
    assert found.mean == pytest.approx(expected.tolist())
    assert min(found.std) > 0
    assert len(data(name, limit=2).train_labels) == 2


def test_a_data_set_is_told_its_folder(data, tmp_path):
    assert data("folder", data_dir=tmp_path).classes == len(str(tmp_path)) + 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("wrong", "returned int: a data set is"), ("sizes", "images of several sizes"), ("unlike", "they must be alike")],
)
def test_what_is_no_data_set_is_refused(data, name, message):
    with pytest.raises(ValueError, match=message):
        data(name)


def test_a_network_that_cannot_be_scaled(tmp_path):
    path = tmp_path / "net.py"
    code = "def flat(classes, image): return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))"
    path.write_text(f"from torch import nn\n{code}")
    assert build(f"{path}:flat", classes=3, image=(1, 2, 2))(torch.zeros(1, 1, 2, 2)).shape == (1, 3)
    with pytest.raises(ValueError, match="no argument width, so --width 0.5 would have no effect"):
        build(f"{path}:flat", classes=3, image=(1, 2, 2), width=0.5)


def test_normalisation_leaves_the_data_as_they_are(data):
    from rewire.lab.data.augment import plain_batches

    found = data("arrays")
    before = found.test_images.clone()
    ((x, _),) = plain_batches(found.test_images, found.test_labels, size=10, mean=found.mean, std=found.std)
    assert torch.equal(found.test_images, before)
    assert not torch.equal(x, before)
    assert np.allclose((before - found.mean[0]) / found.std[0], x, atol=1e-5)


def test_what_a_file_imports_from_its_folder_is_part_of_its_code(tmp_path):
    path, helper, deeper = (tmp_path / f"{name}.py" for name in ("uses", "helper_of_uses", "deeper_helper"))
    path.write_text(
        "from helper_of_uses import SHARE\n" + METHOD.replace("until=until)", "until=until, fraction=SHARE)")
    )
    helper.write_text("import deeper_helper\nSHARE = deeper_helper.VALUE\n")
    deeper.write_text("VALUE = 0.25\n")
    (tmp_path / "unrelated.py").write_text("1\n")
    assert helpers(path) == [deeper, helper]
    run = Run(method=f"{path}:mine")
    assert "0.25" in repr(run.entry("method").example())
    (tmp_path / "unrelated.py").write_text("2\n")
    assert Run(method=f"{path}:mine").id == run.id
    helper.write_text("SHARE = 0.125\n")
    assert state(run.code[0]) == "has changed"
    with pytest.raises(MissingCodeError, match=r"uses\.py:mine has changed since the run began"):
        run.entry("method")
    other = Run(method=f"{path}:mine")
    assert other.id != run.id
    assert "0.125" in repr(other.entry("method").example())  # the changed module was imported again


def test_every_file_of_a_package_beside_it_counts_and_the_library_does_not(tmp_path):
    path, package = tmp_path / "uses.py", tmp_path / "tools_of_uses"
    for name in ("__init__.py", "deep/__init__.py", "deep/more.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    (tmp_path / "rewire").mkdir()
    (tmp_path / "rewire" / "__init__.py").write_text("")
    path.write_text("import rewire\nimport tools_of_uses.deep\nimport uses\n")
    assert helpers(path) == [package / name for name in ("__init__.py", "deep/__init__.py", "deep/more.py")]


PACKAGE = """
import numpy as np
from torch import nn
import rewire
from rewire.lab import grid

def method(*, density, every, until):
    "SET of a package."
    return rewire.set_(density=density, every=every, until=until)

def data():
    "Noise."
    rng = np.random.default_rng(0)
    part = rng.integers(0, 255, (64, 8, 8)).astype(np.uint8), rng.integers(0, 2, 64)
    return part, part

def network(*, classes, image):
    "Two layers."
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, classes))

def experiment():
    "From a package."
    return grid(model="packed-net", data="packed-noise", method="packed-set", sparsity=0.8, epochs=1, batch_size=32)
"""
ENTRY_POINTS = """
[rewire.methods]
packed-set = things_of_mine:method
broken = not_there:method
[rewire.datasets]
packed-noise = things_of_mine:data
[rewire.models]
packed-net = things_of_mine:network
[rewire.experiments]
packed-study = things_of_mine:experiment
"""


def test_an_installed_package_adds_things_of_all_kinds(tmp_path):
    about = tmp_path / "site" / "things_of_mine-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: things-of-mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "site" / "things_of_mine.py").write_text(PACKAGE)

    def rewire(*words, installed=True):
        paths = [str(tmp_path / "site")] * installed + sys.path
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "80"}
        command = [sys.executable, "-m", "rewire.lab", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)

    methods = rewire("methods").stdout
    assert "SET of a package." in methods
    assert "broken\n    cannot be used: ModuleNotFoundError: No module named 'not_there'" in methods
    assert "ggr" in methods
    swept = rewire("sweep", "packed-study", "--workers", "1")
    assert swept.returncode == 0, swept.stderr
    assert "1 done, 0 running" in rewire("runs", "runs/packed-study").stdout
    elsewhere = rewire("runs", "runs/packed-study", installed=False)
    assert "1 done" in elsewhere.stdout
    (folder,) = (tmp_path / "runs" / "packed-study").glob("packed-net_*")
    refused = rewire("inspect", str(folder), installed=False)
    assert refused.returncode == 2
    assert "is not registered here: install or import its package" in refused.stderr
