"""Readers of the data sets' own file formats. They return uint8 images (N, C, H, W) and int64 labels.

A file that is missing, too short, too long or holds impossible values raises an error that names the file, what was
found, what was expected and what to do; no reader returns part of a file. Nothing is ever unpickled.
"""

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from rewire.lab.data.archives import workspace

Split = tuple[Tensor, Tensor]  # images, labels
Pixels = npt.NDArray[np.uint8]


def damaged(path: Path, found: str, expected: str) -> ValueError:
    """Return the error for a file that is there but not as it should be."""
    return ValueError(f"{path}: found {found}, expected {expected}. {_ADVICE}")


def missing(path: Path) -> FileNotFoundError:
    """Return the error for a file of a data set that is not there."""
    return FileNotFoundError(f"{path} is missing from the data set. {_ADVICE}")


_ADVICE = "Extract the official archive again, or remove its folder and run `rewire data fetch`."


def digits() -> tuple[Split, Split]:
    """Read scikit-learn's 1797 handwritten digits (8x8, grey levels 0 .. 16) as 1437 training and 360 test images.

    The split is fixed: sorted by class (images of a class in their own order), every fifth image is for testing. So
    each class is in both parts in proportion, to within one image, and no random generator is involved.
    """
    from sklearn.datasets import load_digits  # slow to import, and only this data set needs it

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    testing = np.zeros(len(labels), dtype=bool)
    testing[np.argsort(labels, kind="stable")[::5]] = True
    train, test = ((torch.from_numpy(pixels[part]), torch.from_numpy(labels[part])) for part in (~testing, testing))
    return train, test


def cifar100(path: Path, *, records: int) -> Split:
    """Read a CIFAR-100 binary file: per image 1 byte coarse label, 1 byte fine label, 3072 bytes of R, G, B planes."""
    if not path.is_file():
        raise missing(path)
    size = path.stat().st_size
    if size != records * 3074:
        raise damaged(path, f"{size} bytes", f"{records * 3074} ({records} images of 3074 bytes)")
    data = np.fromfile(path, dtype=np.uint8).reshape(records, 3074)
    for column, (kind, classes) in enumerate((("coarse", 20), ("fine", 100))):
        _check_labels(path, data[:, column], classes, f"{kind} label")
    images = np.ascontiguousarray(data[:, 2:]).reshape(records, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(data[:, 1].astype(np.int64))


def idx(images: Path, labels: Path, *, records: int, side: int, classes: int) -> Split:
    """Read a pair of IDX files (the format of MNIST), compressed with gzip or not."""
    pixels = _idx_array(images, (records, side, side))
    targets = _idx_array(labels, (records,))
    _check_labels(labels, targets, classes, "label")
    return torch.from_numpy(pixels[:, None].copy()), torch.from_numpy(targets.astype(np.int64))


def _idx_array(path: Path, shape: tuple[int, ...]) -> Pixels:
    """Read one IDX file of bytes: 0, 0, 8 (unsigned bytes), rank, then big-endian sizes, then the values."""
    if not path.is_file():
        path = path.with_suffix("") if path.suffix == ".gz" else path
    if not path.is_file():
        raise missing(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"a broken gzip stream ({error})", "a complete one") from error
    start = 4 + 4 * len(shape)
    magic = bytes([0, 0, 8, len(shape)])
    if content[:4] != magic:
        raise damaged(path, f"the magic number {content[:4].hex()}", magic.hex())
    dimensions = tuple(np.frombuffer(content[4:start].ljust(4 * len(shape), b"\0"), dtype=">u4").tolist())
    if dimensions != shape:
        raise damaged(path, f"the shape {dimensions}", f"{shape}")
    if len(content) - start != math.prod(shape):
        raise damaged(path, f"{len(content) - start} values", f"{math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _check_labels(path: Path, labels: Pixels, classes: int, kind: str) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        raise damaged(path, f"{kind} {labels[wrong[0]]} at image {wrong[0]}", f"labels in 0 .. {classes - 1}")


# -- Tiny-ImageNet: a folder of JPEG files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Picture:
    path: Path
    label: int
    stamp: str  # changes when the file does


def tiny_imagenet(folder: Path, *, cache: Path, classes: int, side: int) -> tuple[Split, Split]:
    """Read the training images and, as the test split, the validation images: the official test labels are secret.

    A label is the line number of its class in wnids.txt. JPEG files are decoded once: the pixels are kept in `cache`
    under a name that depends on the folder and on every file's name, size and time, so a changed folder is read anew.
    """
    listing = folder / "wnids.txt"
    if not listing.is_file():
        raise missing(listing)
    names = listing.read_text().split()
    if len(set(names)) != classes or len(names) != classes:
        raise damaged(listing, f"{len(names)} names, {len(set(names))} different", f"{classes} different ones")
    labels = {name: label for label, name in enumerate(names)}
    train = [p for name, label in labels.items() for p in _pictures(folder / "train" / name / "images", label)]
    test = list(_validation(folder / "val", labels))
    return _split(folder, "train", train, cache, side), _split(folder, "val", test, cache, side)


def _pictures(folder: Path, label: int) -> list[_Picture]:
    if not folder.is_dir():
        raise missing(folder)
    with os.scandir(folder) as entries:
        files = sorted((e for e in entries if e.name.endswith(".JPEG")), key=lambda e: e.name)
    if not files:
        raise damaged(folder, "no file", "at least one .JPEG file")
    stats = [e.stat() for e in files]
    return [_Picture(Path(e.path), label, f"{s.st_size} {s.st_mtime_ns}") for e, s in zip(files, stats, strict=True)]


def _validation(folder: Path, labels: dict[str, int]) -> Iterator[_Picture]:
    table = folder / "val_annotations.txt"
    if not table.is_file():
        raise missing(table)
    annotated: dict[str, int] = {}
    for number, line in enumerate(table.read_text().splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in labels:
            raise damaged(table, f"{line!r} in line {number}", "a file name, a tab and a class of wnids.txt")
        annotated[fields[0]] = labels[fields[1]]
    pictures = {p.path.name: p for p in _pictures(folder / "images", 0)}
    if stray := sorted(pictures.keys() ^ annotated.keys()):
        raise damaged(table, f"{len(stray)} names that are only here or only in images/, such as {stray[0]}", "none")
    return (_Picture(p.path, annotated[name], p.stamp) for name, p in pictures.items())


def _split(folder: Path, part: str, pictures: Sequence[_Picture], cache: Path, side: int) -> Split:
    source = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=6).hexdigest()
    content = hashlib.blake2b(digest_size=12)
    for picture in pictures:
        content.update(f"{picture.path.relative_to(folder).as_posix()} {picture.stamp}\n".encode())
    decoded = cache / "decoded"
    target = decoded / f"tiny-imagenet-{source}-{part}-{content.hexdigest()}.npy"
    shape = (len(pictures), 3, side, side)
    images = _decoded(target, shape)
    if images is None:
        _decode(pictures, shape, target)
        for old in decoded.glob(f"tiny-imagenet-{source}-{part}-*.npy"):
            if old != target:
                old.unlink(missing_ok=True)
        images = _decoded(target, shape)
        assert images is not None, f"{target} was just written"
    return torch.from_numpy(images), torch.tensor([picture.label for picture in pictures])


def _decoded(path: Path, shape: tuple[int, ...]) -> Pixels | None:
    """Open decoded pixels, or return None if they are not there or not whole.

    Copy on write: the pages are shared by all processes that train on them, and none can change the file.
    """
    try:
        pixels: Pixels = np.load(path, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return pixels if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _decode(pictures: Sequence[_Picture], shape: tuple[int, ...], target: Path) -> None:
    with workspace(target.parent) as work:
        pixels = np.lib.format.open_memmap(work / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        # One thread: the images are so small that handing them out costs more than a second core saves.
        for index, picture in enumerate(pictures):
            pixels[index] = _jpeg(picture.path, shape[-1])
        pixels.flush()
        del pixels  # closes the file, which some systems want before it may be renamed
        os.replace(work / "pixels.npy", target)


def _jpeg(path: Path, side: int) -> Pixels:
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))  # about one in fifty is greyscale
    except (OSError, SyntaxError) as error:  # how Pillow reports broken files
        raise damaged(path, f"no readable JPEG ({error})", f"a {side}x{side} JPEG") from error
    if pixels.shape != (side, side, 3):
        raise damaged(path, f"an image of {pixels.shape[1]}x{pixels.shape[0]}", f"{side}x{side}")
    return pixels.transpose(2, 0, 1)
