"""Files that appear when they are complete and were read back, or not at all; and safetensors without surprises."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rewire._extras import need

if TYPE_CHECKING:
    from torch import Tensor  # not imported for more: the command line shows its help before torch is there

UNFINISHED = ".unfinished-"  # how the name of a file begins until it is complete


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A name to write to, beside the file; it takes the file's name if all goes well, and is removed if not."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    temporary = path.with_name(f"{UNFINISHED}{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:  # with a name that users did not give
        raise OSError(f"{path} cannot be written ({error.strerror}): give a file in a folder of yours") from error
    try:
        mode = temporary.stat().st_mode
        yield temporary
        os.chmod(temporary, mode)  # safetensors makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_checked(path: Path, write: Callable[[Path], None], check: Callable[[Path], None]) -> None:
    """Write, read back and check; a file of that name from before stays until the new one is known to be right."""
    with unfinished(path) as temporary:
        write(temporary)
        check(temporary)


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """A safetensors file."""
    need("lab", "safetensors")
    from safetensors import SafetensorError  # imported here: the library itself needs torch and numpy only
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # a full disk, a folder that is read-only
        raise OSError(f"{path} cannot be written: {first_line(error)}") from error


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and the metadata of a safetensors file; a damaged one gets an error that names it."""
    need("lab", "safetensors")
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, or is not a file")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {first_line(error)}. Write it anew") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
