"""Official archives: downloaded, verified by hash, extracted, and put in place in one step or not at all.

Everything happens in a temporary folder beside the target; the finished folder then gets its final name with one
`os.replace`. So a folder that has its final name is complete, and a failure leaves nothing behind.
"""

import os
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import TracebackType

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_STALE = 24 * 3600  # seconds after which the temporary folder of a killed process is swept away


@dataclass(frozen=True)
class Archive:
    """One file as its authors publish it."""

    url: str
    hash: str  # "algorithm:hexadecimal digest"
    size: int  # bytes

    @property
    def file(self) -> str:
        """The name of the file, without its folder."""
        return self.url.rsplit("/", 1)[-1]


def fetch(
    archives: Sequence[Archive], folder: str, cache: Path, *, base_url: str | None = None, progress: bool = True
) -> Path:
    """Download and extract archives so that `cache / folder` exists and is complete; return it.

    Args:
        archives: what to download.
        folder: the folder the archives hold. Plain ``.gz`` files are put into a folder of this name as they are.
        cache: where the folder is wanted.
        base_url: where to take the files from instead of their own address: a mirror.
        progress: show a bar on the standard error output.

    """
    target = cache / folder
    if target.is_dir():
        return target
    with workspace(cache) as work:
        for archive in archives:
            _download(archive, work, base_url, progress)
        return _install([work / archive.file for archive in archives], folder, cache, work)


def install(archives: Sequence[Archive], source: Path, folder: str, cache: Path) -> Path:
    """Like `fetch`, from archives that already lie in the folder `source`; they are verified just the same."""
    target = cache / folder
    if target.is_dir():
        return target
    for archive in archives:
        _verify(source / archive.file, archive)
    with workspace(cache) as work:
        return _install([source / archive.file for archive in archives], folder, cache, work)


def cache_dir() -> Path:
    """Return the folder for downloads and decoded images: ``REWIRE_CACHE``, or the platform's cache folder."""
    chosen = os.environ.get("REWIRE_CACHE")
    return Path(chosen) if chosen else Path(pooch.os_cache("rewire"))


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """Make a temporary folder in `parent`, on the file system of the final place, and remove it afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(".partial-*"):
        # Only a killed process leaves one; a younger one may belong to a process that still works on it.
        if time.time() - stale.stat().st_mtime > _STALE:
            shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def extract(archive: Path, into: Path) -> None:
    """Extract a tar or zip archive, or copy a plain ``.gz`` file; nothing is ever written outside of `into`."""
    into.mkdir(parents=True, exist_ok=True)
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as bundle:
                for member in bundle.infolist():
                    _refuse_outside(member, archive)
                bundle.extractall(into)
        elif archive.name.endswith((".tar.gz", ".tgz", ".tar")):
            with tarfile.open(archive) as bundle:
                bundle.extractall(into, filter="data")
        else:
            shutil.copyfile(archive, into / archive.name)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{archive} cannot be extracted: {error}. Download it again.") from error


def _install(files: Sequence[Path], folder: str, cache: Path, work: Path) -> Path:
    out = work / "extracted"
    for file in files:
        # Archives bring their own folder along, single files do not.
        extract(file, out if file.name.endswith((".zip", ".tar.gz", ".tgz", ".tar")) else out / folder)
    if not (out / folder).is_dir():
        contents = ", ".join(sorted(entry.name for entry in out.iterdir())) or "nothing"
        raise ValueError(
            f"{files[0].name} holds {contents}, but the folder {folder} was expected: is it the right file?"
        )
    target = cache / folder
    try:
        os.replace(out / folder, target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster, and its folder is as complete as ours
            raise
    return target


def _download(archive: Archive, into: Path, base_url: str | None, progress: bool) -> None:
    url = archive.url if base_url is None else f"{base_url.rstrip('/')}/{archive.file}"
    advice = "Try again, or download it by hand and give the folder it is in as the data directory."
    try:
        with _Bar(archive.file, shown=progress) as bar:
            downloader = pooch.HTTPDownloader(progressbar=bar)
            pooch.retrieve(url, known_hash=archive.hash, fname=archive.file, path=into, downloader=downloader)
    except ValueError as error:
        raise ValueError(f"{url} is not the file it should be and was discarded: {error} {advice}") from error
    except OSError as error:  # requests' own errors are OSErrors as well
        raise OSError(f"{url} could not be downloaded: {error}. {advice}") from error


def _verify(file: Path, archive: Archive) -> None:
    size = file.stat().st_size
    if size != archive.size:
        raise ValueError(f"{file} has {size} bytes, but the official file has {archive.size}: download it again.")
    algorithm, expected = archive.hash.split(":")
    digest = pooch.file_hash(str(file), alg=algorithm)
    if digest != expected:
        raise ValueError(f"{file} has the {algorithm} hash {digest}, expected {expected}: download it again.")


def _refuse_outside(member: zipfile.ZipInfo, archive: Path) -> None:
    # zipfile would quietly rewrite such names; an archive that has them is not one we want at all.
    posix, windows = PurePosixPath(member.filename), PureWindowsPath(member.filename)
    outside = posix.is_absolute() or bool(windows.anchor) or ".." in posix.parts or ".." in windows.parts
    if outside or stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError(f"{archive} holds {member.filename!r}, which points outside of it: do not use this file.")


class _Bar:
    """A rich progress bar with the interface pooch expects: `total`, `update`, `reset`, `close`."""

    def __init__(self, file: str, *, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown)
        self._task = self._progress.add_task(file, total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size or None)  # 0 stands for a server that does not tell

    def update(self, size: float) -> None:
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        # pooch counts whole chunks, starts over at the end and adds the exact size.
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing to do: the bar is stopped when its context ends, after failures too."""
