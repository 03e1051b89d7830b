"""Loading native libraries: what is refused, what the CPU is asked for, and the table of entry points."""

import ctypes
import re
import shutil
import subprocess

import pytest

from rewire.kernels import build, entry_points, library, structures
from rewire.kernels.library import LibraryMismatchError, open_library

ISAS = library.available()
pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")
REBUILD = r"rebuild it with `pip install -e \.` or `python -m rewire\.kernels\.build`$"


@pytest.fixture
def copied_sources(tmp_path, monkeypatch):
    """The folder of sources that the hash is taken of: a copy that a test may change."""
    folder = shutil.copytree(build.NATIVE, tmp_path / "native")
    monkeypatch.setattr(build, "NATIVE", folder)
    return folder


@pytest.mark.parametrize("isa", ISAS)
def test_a_library_built_from_the_sources_is_accepted(isa, copied_sources):
    open_library(build.library_path(isa), isa)


@pytest.mark.parametrize("name", ["simd.hpp", "dispatch.cpp"])
def test_a_library_built_from_other_sources_is_refused(name, copied_sources):
    with (copied_sources / name).open("a") as file:
        file.write("// changed\n")
    with pytest.raises(LibraryMismatchError, match=rf"librewire_\w+\.so was not built from the sources .*: {REBUILD}"):
        open_library(build.library_path(ISAS[-1]), ISAS[-1])


def test_a_new_source_file_and_other_flags_need_a_rebuild(copied_sources, monkeypatch):
    before = build.source_hash("baseline")
    (copied_sources / "new.cpp").write_text("")
    added = build.source_hash("baseline")
    monkeypatch.setattr(build, "COMMON", (*build.COMMON, "-ffast-math"))
    assert len({before, added, build.source_hash("baseline"), build.source_hash("avx2")}) == 4


def test_without_sources_the_interface_alone_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    open_library(build.library_path("baseline"), "baseline")
    monkeypatch.delitem(entry_points.ENTRY_POINTS, "rewire_max_pool")
    with pytest.raises(LibraryMismatchError, match=f"differ in function rewire_max_pool: {REBUILD}"):
        open_library(build.library_path("baseline"), "baseline")


def larger(structure):
    fields = (*structure._fields_, ("another", ctypes.c_int64))
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": fields})


def swapped(structure):
    first, second, *rest = structure._fields_
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": (second, first, *rest)})


@pytest.mark.parametrize("change", [larger, swapped])
@pytest.mark.parametrize("structure", structures.STRUCTURES)
def test_another_structure_is_refused(structure, change, monkeypatch):
    changed = [change(one) if one is structure else one for one in structures.STRUCTURES]
    monkeypatch.setattr(library, "STRUCTURES", changed)
    with pytest.raises(LibraryMismatchError, match=f"differ in struct {structure.__name__}: {REBUILD}"):
        open_library(build.library_path("baseline"), "baseline")


def test_another_signature_is_refused(monkeypatch):
    entry = entry_points.EntryPoint((ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), ctypes.c_int32)
    monkeypatch.setitem(entry_points.ENTRY_POINTS, "rewire_is_sorted", entry)
    with pytest.raises(LibraryMismatchError, match="differ in function rewire_is_sorted: "):
        open_library(build.library_path("baseline"), "baseline")


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_a_library_of_a_version_without_a_hash_is_refused(tmp_path):
    source, old = tmp_path / "old.cpp", tmp_path / "librewire_baseline.so"
    source.write_text('extern "C" int rewire_supports(int) { return 1; }')
    subprocess.run([build.compiler(), "-shared", "-fPIC", str(source), "-o", str(old)], check=True)
    with pytest.raises(LibraryMismatchError, match=f"another version of the sources: {REBUILD}"):
        open_library(old, "baseline")


def test_arguments_of_a_wrong_type_are_refused():
    native = library.load("baseline")
    with pytest.raises(ctypes.ArgumentError, match="expected LP_PoolShape instance instead of StepWindow"):
        native.rewire_max_pool(structures.StepWindow(), None, None, 1)
    with pytest.raises(ctypes.ArgumentError):
        native.rewire_max_pool(structures.PoolShape(), 1.5, None, 1)
    with pytest.raises(TypeError, match="takes at least 4 arguments"):
        native.rewire_max_pool(structures.PoolShape(), None, None)


def test_the_cpu_is_asked_for_every_extension():
    supports = library.load("baseline").rewire_cpu_supports
    for extensions in build.EXTENSIONS.values():
        assert all(supports(name.encode()) in (0, 1) for name in extensions)
    assert supports(b"avx1024") == -1


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
@pytest.mark.parametrize("isa", build.instruction_sets())
def test_the_extensions_are_all_that_the_flags_enable(isa):
    """Of what the compiler says that the flags enable, the older extensions come with AVX2 on every CPU."""

    def enabled(*flags):
        command = [build.compiler(), *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
        macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"#define __((?:SSE|SSSE|AVX|FMA|BMI|F16C|POPCNT|CRC32|XSAVE|LZCNT)\w*?)__ 1\n", macros))

    with_avx2 = {"SSE3", "SSSE3", "SSE4_1", "SSE4_2", "AVX", "POPCNT", "CRC32", "XSAVE"}
    machine = [flag for flag in build.flags(isa) if flag.startswith("-m")]
    asked = {name.upper() for name in build.EXTENSIONS[isa]}
    assert enabled(*machine) - enabled() - with_avx2 == asked


def test_only_instruction_sets_with_all_extensions_are_available(monkeypatch):
    class Without:
        def __init__(self, missing):
            self.missing = missing

        def rewire_cpu_supports(self, name):
            return int(name.decode() != self.missing)

    for isa, extensions in build.EXTENSIONS.items():
        for missing in extensions:
            monkeypatch.setattr(library, "load", lambda _, missing=missing: Without(missing))
            assert isa not in library.available()


def test_reference_needs_no_library(monkeypatch, tmp_path):
    (tmp_path / "librewire_baseline.so").write_text("not a library")
    monkeypatch.setenv("REWIRE_LIBRARIES", str(tmp_path))
    monkeypatch.setenv("REWIRE_ISA", "reference")
    assert library.chosen() == "reference"


def test_use_restores_the_library_before():
    before = library.native()
    with library.use(None):
        assert library.native() is None
    with pytest.raises(KeyError), library.use(None):
        raise KeyError
    assert library.native() is before
