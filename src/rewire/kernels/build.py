"""Compiles the native kernels: ``python -m rewire.kernels.build``. The package's own build calls this too.

One shared library per instruction set, from the same sources. Needs nothing but Python and a C++ compiler.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMON = ("-std=gnu++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno")
LEVELS: dict[str, tuple[str, ...]] = {  # from the most portable to the widest
    "baseline": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mprefer-vector-width=512"),
}
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


def library(level: str, folder: Path | None = None) -> Path:
    """Where the library of an instruction set is, or would be; ``REWIRE_LIBRARIES`` names another folder than ours."""
    return (folder or Path(os.environ.get("REWIRE_LIBRARIES", HERE))) / f"librewire_{level}.so"


def compiler() -> str | None:
    """The C++ compiler to use: ``$CXX``, g++ or clang++."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def levels() -> list[str]:
    """The instruction sets that this kind of processor may have."""
    return list(LEVELS) if platform.machine().lower() in ("x86_64", "amd64") else ["baseline"]


def build(folder: Path = HERE, extra: tuple[str, ...] = ()) -> list[Path]:
    """Compile every instruction set into ``folder``; what was built. ``extra`` flags come last."""
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C++ compiler was found: install g++ or clang++, or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    sources = [str(source) for source in sorted((HERE / "native").glob("*.cpp"))]
    built = [library(level, folder) for level in levels()]
    for level, path in zip(levels(), built, strict=True):
        part = path.with_suffix(f".{os.getpid()}")  # renamed at the end: a running process may have the old one open
        subprocess.run([command, *COMMON, *LEVELS[level], *extra, *sources, "-o", str(part)], check=True)
        part.replace(path)
    return built


if __name__ == "__main__":
    wanted = [Path(word) for word in sys.argv[1:] if not word.startswith("-")] or [HERE]
    for built_path in build(wanted[0], SANITIZE if "--sanitize" in sys.argv else ()):
        print(built_path)
