"""What is known about a data set before it is read, the data set in memory, and the registry of data sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from rewire.lab.data.archives import Archive
from rewire.lab.data.augment import Augment
from rewire.lab.references import file_label
from rewire.lab.registry import Registry

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A data set in memory: images (N, C, H, W), int64 labels (N,), or (N, T) for one label at each of T positions.

    Images are uint8, or float32 if they were given as floats. ``mean`` and ``std`` are per channel, of the training
    images; those of uint8 images are in units of 255.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of one image: what `models.build` asks for."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set's entry: how it is called, how it is read, and what is known about it before that.

    `read` is called with the source and the folder of its files, and returns ``(images, labels)`` of the training and
    of the test split. Hashes of archives are the publishers'. Means and standard deviations are those of the whole
    training split and do not depend on `limit`: a network sees the same numbers for the same picture in a quick run.
    """

    name: str
    label: str
    about: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    train: int  # images in the official training split
    test: int
    mean: tuple[float, ...]  # per channel, of the training pixels in 0 .. 1
    std: tuple[float, ...]
    read: Callable[["Source", Path], Any]
    augment: Augment = field(default_factory=Augment)
    archives: tuple[Archive, ...] = ()
    folder: str = ""  # the folder that the archives hold
    markers: tuple[str, ...] = ()  # files that only this data set has: one of them identifies its folder by any name
    system: str = ""  # where a package of the operating system puts it

    @property
    def function(self) -> Callable[["Source", Path], Any]:
        """The code behind the entry."""
        return self.read

    @property
    def download(self) -> int:
        """Bytes that `fetch` downloads; 0 for a data set that needs no download."""
        return sum(archive.size for archive in self.archives)


@dataclass(frozen=True)
class OwnData:
    """A function that returns a data set (`rewire.lab.data.own` lists what it may return)."""

    name: str
    function: Callable[..., Any]

    @property
    def label(self) -> str:
        """Its name in tables."""
        return file_label(self.name)

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


def _entry(name: str, value: Any) -> Source | OwnData:
    return value if isinstance(value, Source) else OwnData(name, value)


DATASETS: Registry[Source | OwnData] = Registry(
    "data set", folder="rewire.lab.data.sets", group="rewire.datasets", wrap=_entry
)


def register(source: Source) -> Source:
    """Add a data set under its name."""
    DATASETS.add(source.name, source)
    return source


def register_function(name: str) -> Callable[[Function], Function]:
    """A decorator that adds a function that returns a data set, and returns the function as it is."""

    def add(function: Function) -> Function:
        DATASETS.add(name, OwnData(name, function))
        return function

    return add
