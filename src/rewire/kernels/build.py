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
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE / "native"
COMMON = ("-std=gnu++17", "-O3", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")

# The libraries do not name an OpenMP runtime: ``library.py`` lets them use the one that torch has loaded, so that torch
# and the kernels share one pool of threads and a wheel needs no libgomp on the machine. Every library calls its own
# functions: those of the other instruction sets have the same names.
LINK = ("-shared", "-Wl,-Bsymbolic-functions")

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
    hasher = hashlib.sha256(" ".join((*flags(isa), *LINK)).encode())
    for source in sources():
        hasher.update(f"\n{source.name}\n".encode())
        hasher.update(source.read_bytes())
    return hasher.hexdigest()


def library_path(isa: str, folder: Path | None = None) -> Path:
    """The path of an instruction set's library; ``REWIRE_LIBRARIES`` names another folder than the package's own."""
    return (folder or Path(os.environ.get("REWIRE_LIBRARIES", HERE))) / f"librewire_{isa}.so"


def is_current(path: Path, isa: str) -> bool:
    """Whether a library exists and was built from these sources with these flags; it is not loaded for that."""
    return path.exists() and source_hash(isa).encode() in path.read_bytes()


def compiler() -> str | None:
    """The C++ compiler to use: ``$CXX``, g++ or clang++."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def instruction_sets(target: str = "") -> list[str]:
    """The instruction sets that a kind of processor may have; by default this machine's.

    >>> instruction_sets("aarch64-linux-gnu")
    ['baseline']
    """
    processor = (target or platform.machine()).lower().partition("-")[0]
    return list(EXTENSIONS) if processor in ("x86_64", "amd64") else ["baseline"]


def build(folder: Path = HERE, extra: tuple[str, ...] = ()) -> list[Path]:
    """Compile every instruction set of the compiler's target into ``folder`` and return the libraries' paths.

    ``extra`` flags come last. A cross-compiler in ``$CXX`` builds for its own target.
    """
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C++ compiler was found: install g++ or clang++, or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    isas = instruction_sets(_output(command, "-dumpmachine"))
    with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = {isa: _compile(pool, command, isa, extra, Path(objects)) for isa in isas}
        for commands in compiled.values():
            for done in commands:
                done.result()
        return [_link(command, isa, extra, Path(objects), folder) for isa in isas]


def _compile(
    pool: ThreadPoolExecutor, command: str, isa: str, extra: tuple[str, ...], objects: Path
) -> list[Future[subprocess.CompletedProcess[bytes]]]:
    """Start to compile all files for one instruction set."""
    defined = f'-DREWIRE_SOURCE_HASH="{source_hash(isa)}"'
    return [
        pool.submit(
            subprocess.run,
            [command, *flags(isa), *extra, defined, "-c", str(source), "-o", str(objects / f"{source.stem}.{isa}.o")],
            check=True,
        )
        for source in sources()
        if source.suffix == ".cpp"
    ]


def _link(command: str, isa: str, extra: tuple[str, ...], objects: Path, folder: Path) -> Path:
    """Link the object files of one instruction set."""
    path = library_path(isa, folder)
    part = path.with_suffix(f".{os.getpid()}")  # renamed at the end: a running process may have the old one open
    files = sorted(str(file) for file in objects.glob(f"*.{isa}.o"))
    # clang++ compiles for a runtime of its own, which torch does not bring.
    runtime = ("-fopenmp",) if "clang" in _output(command, "--version") else ()
    subprocess.run([command, *LINK, *runtime, *extra, *files, "-o", str(part)], check=True)
    part.replace(path)
    return path


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:] if not word.startswith("-")] or [HERE]
    for built_path in build(folders[0], SANITIZE if "--sanitize" in sys.argv else ()):
        print(built_path)
