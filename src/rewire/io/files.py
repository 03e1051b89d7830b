"""Files that appear complete and verified or not at all, and safetensors files with a checksum of their content."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rewire._extras import need

if TYPE_CHECKING:
    from torch import (
        Tensor,  # not imported at run time: the command line shows its help before it has to wait for torch
    )

UNFINISHED = ".unfinished-"  # how the name of a file begins until it is complete
CHECKSUM = "checksum"  # the key in a file's metadata
WITHOUT_CHECKSUM = (None, "rewire-sparse-1")  # formats of earlier versions: they are read with a warning


class DamagedFileError(ValueError):
    """A file, which the message names, is not what was written."""


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``: renamed to ``path`` if the block succeeds, removed if it raises.

    If ``path`` is a symbolic link, the link stays and the file that it points to is replaced.
    """
    path = _behind_links(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a pipe, a socket or a device, not a file: give the name of a file")
    temporary = path.with_name(f"{UNFINISHED}{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:  # it would name the temporary file, which the user never asked for
        raise OSError(f"{path} cannot be written ({error.strerror}): give a file in a folder of yours") from error
    try:
        mode = temporary.stat().st_mode
        yield temporary
        os.chmod(temporary, mode)  # safetensors creates files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _behind_links(path: Path) -> Path:
    """The path itself, or what it points to as a symbolic link, which need not exist."""
    if not path.is_symlink():
        return path
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # RuntimeError before Python 3.13
        target = path
    if target.is_symlink():
        raise OSError(f"{path} is a symbolic link that leads back to itself: give the name of a file")
    return target


def write_checked(path: str | Path, write: Callable[[Path], None], check: Callable[[Path], None]) -> None:
    """Write a file and check it before it gets its name; until then an older file of that name stays."""
    with unfinished(Path(path)) as temporary:
        write(temporary)
        check(temporary)


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """A safetensors file whose metadata also holds a checksum of the tensors and of the metadata."""
    need("lab", "safetensors")
    from safetensors import SafetensorError  # imported here: the library itself needs torch and numpy only
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata | {CHECKSUM: checksum(tensors, metadata)})
    except SafetensorError as error:  # a full disk, a folder that is read-only
        raise OSError(f"{path} cannot be written: {first_line(error)}") from error


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and the metadata of a safetensors file. A damaged file raises an error that names it."""
    need("lab", "safetensors")
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, or is not a file")
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, AttributeError) as error:
        raise DamagedFileError(f"{path} is not a safetensors file: {first_line(error)}. Write it anew") from error
    expected = metadata.pop(CHECKSUM, None)
    verify_checksum(str(path), tensors, metadata, expected)
    return tensors, metadata


def checksum(tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of all tensors, and of the metadata.

    >>> import torch
    >>> checksum({"a": torch.tensor([0.0])}, {}) == checksum({"a": torch.tensor([-0.0])}, {})
    False
    """
    import torch

    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def verify_checksum(
    name: str, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str], expected: str | None
) -> None:
    """Raise if the content is not what was written; warn about a file of an earlier version, which has no checksum."""
    if expected is None and metadata.get("format") in WITHOUT_CHECKSUM:
        warnings.warn(
            f"{name} was written by an earlier version and has no checksum: damage may go unnoticed. "
            "Load it and save it again to add one",
            stacklevel=5,  # the caller of load_sparse
        )
    elif checksum(tensors, metadata) != expected:
        raise DamagedFileError(f"{name} is damaged: its content does not match its checksum. Write it anew")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
