"""``rewire doctor`` tells what is wrong with an installation, and how to mend it."""

import json
import re
import shutil
from importlib import metadata

import pytest

from rewire.kernels import build, library
from rewire.lab import health
from rewire.lab.cli.main import main

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
WHOLE_PACKAGE = metadata.requires("rewire")


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Runs the command; returns its exit code and what it printed."""
    monkeypatch.delenv("REWIRE_ISA", raising=False)

    def run(*words):
        code = 0
        try:
            main(["doctor", *words])
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().out

    return run


def in_one_line(text):
    return " ".join(text.split())


def test_a_good_installation(doctor):
    code, text = doctor()
    assert code == 0
    assert "problem" not in text
    assert f"{library.chosen()} runs, with" in text
    assert "built from the sources beside them" in in_one_line(text)
    assert re.search(r"^  ok       torch +2\.", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_json_says_the_same(doctor):
    code, text = doctor("--json")
    found = json.loads(text)
    assert code == 0
    assert found["healthy"] is True
    assert found["rewire"] == metadata.version("rewire")
    assert {"Python", "torch", "numpy", "kernels", "lab", "onnx", "transformers"} <= {
        c["name"] for c in found["checks"]
    }
    assert all(set(check) == {"name", "state", "text", "fix"} for check in found["checks"])


def test_a_missing_extra_is_no_problem_and_comes_with_its_command(doctor, monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: [*WHOLE_PACKAGE, "surely-not-here>=1; extra == 'flights'"])
    code, text = doctor()
    assert code == 0
    assert "surely-not-here is not installed -> pip install 'rewire[flights]'" in in_one_line(text)
    assert "What is missing is optional." in text
    assert "dev " not in text


@pytest.mark.parametrize("versions", [">=99", "<2"])
def test_a_dependency_out_of_range_is_a_problem(doctor, monkeypatch, versions):
    monkeypatch.setattr(metadata, "requires", lambda _: [f"torch{versions}"])
    code, text = doctor()
    assert code == 1
    assert f"is installed, and {versions} is needed -> pip install 'torch{versions}'" in in_one_line(text)


def test_kernels_of_other_sources_are_a_problem(doctor, monkeypatch, tmp_path):
    folder = shutil.copytree(build.NATIVE, tmp_path / "native")
    (folder / "new.hpp").write_text("// changed\n")
    monkeypatch.setattr(build, "NATIVE", folder)
    code, text = doctor()
    assert code == 1
    assert "librewire_avx2.so was not built from the sources beside it" in in_one_line(text)
    assert "-> rebuild it with `pip install -e .`" in in_one_line(text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_file_that_is_no_library_is_a_problem(doctor, monkeypatch, tmp_path):
    (tmp_path / "librewire_baseline.so").write_text("not a library")
    monkeypatch.setenv("REWIRE_LIBRARIES", str(tmp_path))
    code, text = doctor()
    assert code == 1
    assert "librewire_baseline.so: file too short" in in_one_line(text)


def test_kernels_that_are_not_built_are_a_problem(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("REWIRE_LIBRARIES", str(tmp_path))
    code, text = doctor()
    assert code == 1
    assert "not built: the slow reference implementation in plain torch runs" in in_one_line(text)
    assert "run `python -m rewire.kernels.build`" in in_one_line(text)
    monkeypatch.setattr(build, "compiler", lambda: None)
    text = in_one_line(doctor()[1])
    assert "-> install g++ or clang++, then run `python -m rewire.kernels.build`" in text
    assert "no C++ compiler" in text


def test_an_instruction_set_by_name(doctor, monkeypatch):
    monkeypatch.setenv("REWIRE_ISA", "baseline")
    assert "baseline runs" in doctor()[1]
    monkeypatch.setenv("REWIRE_ISA", "reference")
    assert "because REWIRE_ISA=reference" in in_one_line(doctor()[1])
    monkeypatch.setenv("REWIRE_ISA", "mmx")
    code, text = doctor()
    assert code == 1
    assert "REWIRE_ISA='mmx' is not available here" in in_one_line(text)


def test_files_of_another_version_than_the_installed_one(doctor, monkeypatch):
    monkeypatch.setattr("rewire.__version__", "99.0")
    code, text = doctor()
    assert code == 1
    assert "the files are version 99.0, installed is" in in_one_line(text)


def test_a_package_that_is_not_installed(doctor, monkeypatch):
    def not_found(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "metadata", not_found)
    code, text = doctor()
    assert code == 1
    assert "on Python's path without being installed" in in_one_line(text)


@pytest.mark.parametrize(
    ("version", "versions", "expected"),
    [
        ("2.13.0", ">=2.13", True),
        ("2.13", ">=2.13.0", True),
        ("2.9", ">=2.13", False),
        ("3.0.0", "<3", False),
        ("3.0.0rc1", "<3", False),
        ("2.99+cu130", ">=2.13, <3", True),
        ("1", "", True),
    ],
)
def test_ranges_of_versions(version, versions, expected):
    assert health.satisfies(version, versions) == expected


def test_a_range_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="only >= and < are understood"):
        health.satisfies("1", "~=1.0")


def test_all_requirements_of_the_package_are_understood():
    listed = health.requirements()
    assert len(listed) == len(WHOLE_PACKAGE)
    assert [one.package for one in listed if not one.extra] == ["torch", "numpy"]
    assert not any(health.satisfies("0", one.versions) for one in listed if one.package != "rewire")
