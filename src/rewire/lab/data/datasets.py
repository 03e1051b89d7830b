"""Data sets for image classification, held in memory as uint8.

`digits` comes with scikit-learn and needs no download. The others are read as their authors publish them. They are
looked for in this order:

1. the folder given as `data_dir`; if the data set is not there, that is an error, never a reason to look elsewhere;
2. the folder named by the environment variable ``REWIRE_DATA``;
3. what `fetch` has downloaded before, in the platform's cache folder or the one named by ``REWIRE_CACHE``;
4. for Fashion-MNIST, the files that Debian's package dataset-fashion-mnist installs.

A folder may hold the extracted data set, be it, or hold the official archives, which are then verified and extracted
into the cache. `load` never downloads anything.
"""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pooch
import torch
from torch import Tensor

from rewire.lab.data import archives, formats
from rewire.lab.data.archives import Archive
from rewire.lab.data.augment import Augment
from rewire.lab.data.formats import Split


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is known about a data set before it is read."""

    name: str
    about: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    train: int  # images in the official training split
    test: int
    mean: tuple[float, ...]  # per channel, of the training pixels in 0 .. 1
    std: tuple[float, ...]
    augment: Augment = field(default_factory=Augment)
    archives: tuple[Archive, ...] = ()
    folder: str = ""  # the folder that the archives hold
    markers: tuple[str, ...] = ()  # files that only this data set has: one of them tells its folder by any name
    system: str = ""  # where a package of the operating system puts it

    @property
    def download(self) -> int:
        """Bytes that `fetch` downloads; 0 for a data set that needs no download."""
        return sum(archive.size for archive in self.archives)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A data set in memory: uint8 images (N, C, H, W), int64 labels (N,)."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of one image: what `models.build` asks for."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

# The hashes are the publishers'. The means and standard deviations are those of the whole training split and do not
# depend on `limit`, so a network sees the same numbers for the same picture in a quick run and in a full one.
_SOURCES = (
    Source(
        name="digits",
        about="scikit-learn's handwritten digits, 8x8 grey; comes with the package",
        shape=(1, 8, 8),
        classes=10,
        train=1437,
        test=360,
        mean=(0.3058,),
        std=(0.3761,),
        augment=Augment(padding=1, flip=False),  # a mirrored digit is another sign, and 8 pixels have no margin for 4
    ),
    Source(
        name="cifar100",
        about="CIFAR-100, 32x32 colour, fine labels (Krizhevsky, 2009)",
        shape=(3, 32, 32),
        classes=100,
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        folder="cifar-100-binary",
        markers=("train.bin",),
    ),
    Source(
        name="tiny-imagenet",
        about="Tiny-ImageNet, 64x64 colour; its validation split is the test split (Le and Yang, 2015)",
        shape=(3, 64, 64),
        classes=200,
        train=100_000,
        test=10_000,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        archives=(
            Archive(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
        folder="tiny-imagenet-200",
        markers=("wnids.txt",),
    ),
    Source(
        name="fashion-mnist",
        about="Fashion-MNIST, 28x28 grey (Xiao et al., 2017)",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        mean=(0.2860,),
        std=(0.3530,),
        archives=(
            Archive(f"{_FASHION}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            Archive(f"{_FASHION}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe", 29_515),
            Archive(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            Archive(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        folder="fashion-mnist",
        markers=("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"),
        system="/usr/share/datasets/fashion-mnist",
    ),
)

DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}


def load(name: str, *, data_dir: Path | None = None, limit: int | None = None) -> Dataset:
    """Read a data set into memory.

    Args:
        name: a key of `DATASETS`.
        data_dir: where to look first; `digits` ignores it.
        limit: keep at most this many images of each split, spread evenly over the classes: for quick runs.

    >>> load("digits", limit=100).train_images.shape
    torch.Size([100, 1, 8, 8])

    """
    source = _known(name)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give at least 1, or None for all images.")
    folder = locate(source, data_dir) if source.archives else Path()
    (train_images, train_labels), (test_images, test_labels) = (
        _limited(split, limit) for split in _READERS[name](source, folder)
    )
    return Dataset(
        name=name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        classes=source.classes,
        mean=source.mean,
        std=source.std,
        augment=source.augment,
    )


def fetch(name: str, *, cache: Path | None = None, base_url: str | None = None, progress: bool = True) -> Path | None:
    """Download a data set, verify it and extract it into the cache; return its folder.

    Nothing is downloaded if it is there already. `digits` needs no download: None is returned.

    Args:
        name: a key of `DATASETS`.
        cache: instead of `cache_dir()`.
        base_url: a mirror that has the files under their own names; their hashes stay those of the publisher.
        progress: show a bar on the standard error output.

    """
    source = _known(name)
    if not source.archives:
        return None
    place = cache_dir() if cache is None else cache
    return archives.fetch(source.archives, source.folder, place, base_url=base_url, progress=progress)


def cache_dir() -> Path:
    """Return the folder for downloads and decoded images: ``REWIRE_CACHE``, or the platform's cache folder."""
    chosen = os.environ.get("REWIRE_CACHE")
    return Path(chosen) if chosen else Path(pooch.os_cache("rewire"))


def locate(source: Source, data_dir: Path | None = None) -> Path:
    """Return the folder of a data set, by the order that this module's docstring gives."""
    if data_dir is not None:
        if found := _inside(source, data_dir):
            return found
        files = ", ".join(archive.file for archive in source.archives)
        raise FileNotFoundError(
            f"{source.name} is not in {data_dir}: expected the folder {source.folder} there, or {files}. "
            f"Correct the folder, or leave it out and run `rewire data fetch {source.name}`."
        )
    named = os.environ.get("REWIRE_DATA")
    places = [Path(place) for place in (named, cache_dir(), source.system) if place]
    for place in places:
        if found := _inside(source, place):
            return found
    raise FileNotFoundError(
        f"{source.name} is not on this machine (looked in {', '.join(map(str, places))}). Run `rewire data fetch "
        f"{source.name}` ({source.download / 1e6:.0f} MB), or set REWIRE_DATA to a folder that has it."
    )


def _inside(source: Source, place: Path) -> Path | None:
    if (place / source.folder).is_dir():
        return place / source.folder
    if any((place / marker).is_file() for marker in source.markers):
        return place
    if all((place / archive.file).is_file() for archive in source.archives):
        return archives.install(source.archives, place, source.folder, cache_dir())
    return None


def _known(name: str) -> Source:
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown data set {name!r}: {hint}The known ones are {', '.join(DATASETS)}.")
    return DATASETS[name]


def _limited(split: Split, limit: int | None) -> Split:
    """Keep the first images of each class, as many of one as of another to within one, in their own order."""
    images, labels = split
    if limit is None or limit >= len(labels):
        return split
    by_class = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts  # how many of the same class come before
    chosen = torch.argsort(rank, stable=True)[:limit].sort().values
    return images[chosen], labels[chosen]


def _read_digits(source: Source, folder: Path) -> tuple[Split, Split]:
    return formats.digits()


def _read_cifar100(source: Source, folder: Path) -> tuple[Split, Split]:
    train = formats.cifar100(folder / "train.bin", records=source.train)
    return train, formats.cifar100(folder / "test.bin", records=source.test)


def _read_tiny_imagenet(source: Source, folder: Path) -> tuple[Split, Split]:
    return formats.tiny_imagenet(folder, cache=cache_dir(), classes=source.classes, side=source.shape[-1])


def _read_fashion_mnist(source: Source, folder: Path) -> tuple[Split, Split]:
    def part(prefix: str, records: int) -> Split:
        images, labels = folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"
        return formats.idx(images, labels, records=records, side=source.shape[-1], classes=source.classes)

    return part("train", source.train), part("t10k", source.test)


_READERS: dict[str, Callable[[Source, Path], tuple[Split, Split]]] = {
    "digits": _read_digits,
    "cifar100": _read_cifar100,
    "tiny-imagenet": _read_tiny_imagenet,
    "fashion-mnist": _read_fashion_mnist,
}
