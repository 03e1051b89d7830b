"""Compiles the native kernels: ``python -m rewire.kernels.build``. The package's own build calls this too.

One shared library per instruction set, from the same sources. Needs nothing but Python and a C++ compiler. Every
library carries a hash of what it was built from, which ``library.py`` compares with the sources beside it.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE / "native"
COMMON = ("-std=gnu++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno")

# Instruction sets from the most portable to the widest, with the CPU extensions that each needs. The extensions are
# both passed to the compiler and asked of the CPU (``rewire_cpu_supports`` in native/interface.cpp).
EXTENSIONS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx2", "avx512f", "avx512dq", "avx512vl", "avx512bw"),
}
OPTIONS = {"avx512": ("-mprefer-vector-width=512",)}
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


def flags(isa: str) -> tuple[str, ...]:
    """The compiler's flags for an instruction set.

    >>> flags("avx2")[-2:]
    ('-mavx2', '-mfma')
    """
    return (*COMMON, *(f"-m{name}" for name in EXTENSIONS[isa]), *OPTIONS.get(isa, ()))


def sources() -> list[Path]:
    """All C++ files, headers included; empty where the package was installed without them."""
    return sorted([*NATIVE.glob("*.cpp"), *NATIVE.glob("*.hpp")])


def source_hash(isa: str) -> str:
    """A hash of all sources and of the flags; flags that are added for the sanitizers do not count."""
    found = hashlib.sha256(" ".join(flags(isa)).encode())
    for source in sources():
        found.update(f"\n{source.name}\n".encode())
        found.update(source.read_bytes())
    return found.hexdigest()


def library_path(isa: str, folder: Path | None = None) -> Path:
    """The path of an instruction set's library; ``REWIRE_LIBRARIES`` names another folder than the package's own."""
    return (folder or Path(os.environ.get("REWIRE_LIBRARIES", HERE))) / f"librewire_{isa}.so"


def compiler() -> str | None:
    """The C++ compiler to use: ``$CXX``, g++ or clang++."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def instruction_sets() -> list[str]:
    """The instruction sets that this kind of processor may have."""
    return list(EXTENSIONS) if platform.machine().lower() in ("x86_64", "amd64") else ["baseline"]


def build(folder: Path = HERE, extra: tuple[str, ...] = ()) -> list[Path]:
    """Compile every instruction set into ``folder`` and return the libraries' paths. ``extra`` flags come last."""
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C++ compiler was found: install g++ or clang++, or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(source) for source in sources() if source.suffix == ".cpp"]
    built = []
    for isa in instruction_sets():
        path = library_path(isa, folder)
        part = path.with_suffix(f".{os.getpid()}")  # renamed at the end: a running process may have the old one open
        defined = f'-DREWIRE_SOURCE_HASH="{source_hash(isa)}"'
        subprocess.run([command, *flags(isa), *extra, defined, *files, "-o", str(part)], check=True)
        part.replace(path)
        built.append(path)
    return built


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:] if not word.startswith("-")] or [HERE]
    for built_path in build(folders[0], SANITIZE if "--sanitize" in sys.argv else ()):
        print(built_path)
