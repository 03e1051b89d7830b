"""Checks of an installation: versions, the native kernels, optional packages. ``rewire doctor`` prints them."""

import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

import rewire
from rewire.kernels import build, library

State = Literal["ok", "missing", "problem"]
DEVELOPERS = ("dev", "docs")  # extras that only people who change Rewire need
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,]+)\])?\s*([^;]*?)\s*(?:;.*extra == [\"'](\w+)[\"'].*)?$")


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it.

    ``missing``: something optional is not there. ``problem``: something does not work, or not as it should.
    """

    name: str
    state: State
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Requirement:
    """One line of the package's list of dependencies; ``extra`` is empty for those that are always needed."""

    package: str
    nested: tuple[str, ...]  # the extras of that package
    versions: str
    extra: str

    def complaint(self) -> str:
        """What is wrong with the installed package; empty if nothing is."""
        try:
            installed = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        if not satisfies(installed, self.versions):
            return f"{self.package} {installed} is installed, and {self.versions} is needed"
        return ""


def checks() -> list[Check]:
    """All checks, the most important first."""
    return [_python(), *_dependencies(), *kernels(), _compiler(), _device(), *_extras()]


def satisfies(version: str, versions: str) -> bool:
    """Whether a version is in a range of lower and upper bounds.

    >>> satisfies("2.13.0+cpu", ">=2.7,<3"), satisfies("2.6.0", ">=2.7,<3")
    (True, False)
    """
    for bound in filter(None, versions.split(",")):
        match = re.fullmatch(r"\s*(>=|<)\s*([\d.]+)\s*", bound)
        if not match:
            raise ValueError(f"cannot compare versions with {bound!r}: only >= and < are understood")
        if (_numbers(version) >= _numbers(match[2])) != (match[1] == ">="):
            return False
    return True


def _numbers(version: str) -> list[int]:
    """The numbers of a release, without zeros at the end and without what follows them."""
    release = re.match(r"[\d.]*\d", version)
    numbers = [int(number) for number in release[0].split(".")] if release else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    installed = _metadata()
    needed = installed["Requires-Python"] if installed else ""
    if not satisfies(platform.python_version(), needed):
        return Check("Python", "problem", f"{text}, and {needed} is needed", "use a newer Python")
    return Check("Python", "ok", text)


def _metadata() -> "metadata.PackageMetadata | None":
    try:
        return metadata.metadata("rewire")
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[Requirement]:
    """What the package asks for, with the extras it is asked by."""
    lines = metadata.requires("rewire") if _metadata() else None
    matches = [match for line in lines or () if (match := REQUIREMENT.match(line))]
    return [Requirement(m[1], tuple((m[2] or "").split(",")) if m[2] else (), m[3], m[4] or "") for m in matches]


def _dependencies() -> list[Check]:
    """The packages that Rewire always needs; and whether it is itself installed as the files say."""
    installed = _metadata()
    if installed is None:
        fix = "run `pip install -e .` in the folder of the project"
        return [Check("rewire", "problem", "is on Python's path without being installed", fix)]
    checks = []
    if installed["Version"] != rewire.__version__:
        text = f"the files are version {rewire.__version__}, installed is {installed['Version']}"
        checks.append(
            Check("rewire", "problem", text, "install it again: `pip install -e .`, or `pip install -U rewire`")
        )
    for needed in requirements():
        if not needed.extra:
            complaint = needed.complaint()
            text = complaint or f"{metadata.version(needed.package)} ({needed.versions})"
            fix = f"pip install '{needed.package}{needed.versions}'" if complaint else ""
            checks.append(Check(needed.package, "problem" if complaint else "ok", text, fix))
    return checks


def kernels() -> list[Check]:
    """The native libraries: built, from these sources, and fit for this processor; and which of them runs."""
    refused = _refused_libraries()
    if refused:
        return [Check("kernels", "problem", "; ".join(refused), library.REBUILD)]
    built = [isa for isa in build.EXTENSIONS if build.library_path(isa).exists()]
    if not built:
        how = "" if build.compiler() else "install g++ or clang++, then "
        text = "not built: the slow reference implementation in plain torch runs"
        return [Check("kernels", "problem", text, f"{how}run `python -m rewire.kernels.build`")]
    try:
        running = library.chosen()
    except ValueError as error:
        return [Check("kernels", "problem", str(error), "change or unset the environment variable REWIRE_ISA")]
    unsupported = [isa for isa in built if isa not in library.available()]
    text = f"{running} runs, with {torch.get_num_threads()} threads"
    if running == library.REFERENCE:
        text = "the slow reference implementation runs, because REWIRE_ISA=reference"
    source = "built from the sources beside them" if build.sources() else "installed without their sources"
    lines = [text, f"libraries {', '.join(built)}: {source}"]
    if unsupported:
        lines.append(f"this processor does not support {', '.join(unsupported)}")
    return [Check("kernels", "ok", "; ".join(lines)), _openmp()]


def _refused_libraries() -> list[str]:
    """Why libraries cannot be used."""
    reasons = []
    for isa in build.EXTENSIONS:
        path = build.library_path(isa)
        if path.exists():
            try:
                library.open_library(path, isa)
            except (library.LibraryMismatchError, OSError) as error:
                reason = str(error).partition(f": {library.REBUILD}")[0]
                reasons.append(reason.replace(str(path), path.name))
    return reasons


def _openmp() -> Check:
    """The OpenMP runtimes that this process has loaded: torch's own serves torch and the kernels."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    loaded = sorted({line.split()[-1] for line in lines if re.search(r"/lib[gi]?omp[^/]*\.so", line)})
    own = [path for path in loaded if Path(torch.__file__).parent in Path(path).parents]
    name = f"torch's own ({Path(own[0]).name})" if own else ", ".join(loaded) or "unknown"
    return Check("OpenMP", "ok", name)


def _compiler() -> Check:
    command = build.compiler()
    if command is None:
        text = "no C++ compiler: the kernels cannot be rebuilt, and torch.compile cannot be used on the CPU"
        return Check("compiler", "missing", text, "install g++ or clang++")
    return Check("compiler", "ok", str(shutil.which(command)))


def _device() -> Check:
    if torch.cuda.is_available():
        return Check("device", "ok", f"{torch.cuda.get_device_name()} and the CPU with {os.cpu_count()} processors")
    return Check("device", "ok", f"the CPU with {os.cpu_count()} processors; torch finds no GPU")


def _extras() -> list[Check]:
    """One check for each extra that users may want."""
    listed = requirements()
    checks = []
    for extra in dict.fromkeys(
        requirement.extra for requirement in listed if requirement.extra and requirement.extra not in DEVELOPERS
    ):
        packages = _packages(listed, extra)
        complaints = [complaint for requirement in packages if (complaint := requirement.complaint())]
        if complaints:
            checks.append(Check(extra, "missing", "; ".join(complaints), f"pip install 'rewire[{extra}]'"))
        else:
            installed = [f"{requirement.package} {metadata.version(requirement.package)}" for requirement in packages]
            checks.append(Check(extra, "ok", ", ".join(installed)))
    return checks


def _packages(listed: list[Requirement], extra: str) -> list[Requirement]:
    """The packages of an extra; other extras of Rewire that it names are checked by themselves."""
    return [requirement for requirement in listed if requirement.extra == extra and requirement.package != "rewire"]
