"""Data sets for image classification, in memory as uint8 (floats where a function of one's own returns floats).

`digits` comes with scikit-learn and needs no download. The others are read as their authors publish them. They are
looked for in this order:

1. the folder given as `data_dir`; if the data set is not there, that is an error, never a reason to look elsewhere;
2. the folder named by the environment variable ``REWIRE_DATA``;
3. what `fetch` has downloaded before, in the platform's cache folder or the one named by ``REWIRE_CACHE``;
4. for Fashion-MNIST, the files that Debian's package dataset-fashion-mnist installs.

A folder may hold the extracted data set, be it, or hold the official archives, which are then verified and extracted
into the cache. `load` never downloads anything.
"""

import os
from dataclasses import replace
from pathlib import Path

import torch

from rewire.lab.data import archives
from rewire.lab.data.archives import cache_dir
from rewire.lab.data.formats import Split
from rewire.lab.data.own import to_dataset
from rewire.lab.data.source import DATASETS, Dataset, OwnData, Source
from rewire.lab.references import Code


def load(name: str, *, data_dir: Path | None = None, limit: int | None = None, code: Code | None = None) -> Dataset:
    """Read a data set into memory.

    Args:
        name: a key of `DATASETS`, or a reference to a function of one's own (``file.py:function``).
        data_dir: where to look first; `digits` ignores it.
        limit: keep at most this many images of each split, spread evenly over the classes: for quick runs.
        code: what a run recorded of the function; it must not have changed.

    >>> load("digits", limit=100).train_images.shape
    torch.Size([100, 1, 8, 8])

    """
    source = DATASETS.find(name, code)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give at least 1, or None for all images.")
    dataset = to_dataset(name, source.function, data_dir) if isinstance(source, OwnData) else _read(source, data_dir)
    train_images, train_labels = _limited((dataset.train_images, dataset.train_labels), limit)
    test_images, test_labels = _limited((dataset.test_images, dataset.test_labels), limit)
    return replace(
        dataset,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def _read(source: Source, data_dir: Path | None) -> Dataset:
    folder = locate(source, data_dir) if source.archives else Path()
    (train_images, train_labels), (test_images, test_labels) = source.read(source, folder)
    return Dataset(
        name=source.name,
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

    Nothing is downloaded if it is there already. A data set that needs no download gives None.

    Args:
        name: a key of `DATASETS`.
        cache: instead of `cache_dir()`.
        base_url: a mirror that has the files under their own names; their hashes stay those of the publisher.
        progress: show a bar on the standard error output.

    """
    source = DATASETS.find(name)
    if isinstance(source, OwnData) or not source.archives:
        return None
    place = cache_dir() if cache is None else cache
    return archives.fetch(source.archives, source.folder, place, base_url=base_url, progress=progress)


def locate(source: Source, data_dir: Path | None = None) -> Path:
    """Return the folder of a data set, by the order that this module's docstring gives."""
    if data_dir is not None:
        if folder := _inside(source, data_dir):
            return folder
        files = ", ".join(archive.file for archive in source.archives)
        raise FileNotFoundError(
            f"{source.name} is not in {data_dir}: expected the folder {source.folder} there, or {files}. "
            f"Correct the folder, or leave it out and run `rewire data fetch {source.name}`."
        )
    named = os.environ.get("REWIRE_DATA")
    places = [Path(place) for place in (named, cache_dir(), source.system) if place]
    for place in places:
        if folder := _inside(source, place):
            return folder
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


def _limited(split: Split, limit: int | None) -> Split:
    """Keep the first images of each class, as many of one as of another to within one, in their own order."""
    images, labels = split
    if limit is None or limit >= len(labels):
        return split
    if labels.ndim > 1:  # a label at each position: the samples have no class to balance
        return images[:limit], labels[:limit]
    by_class = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts  # how many of the same class come before
    chosen = torch.argsort(rank, stable=True)[:limit].sort().values
    return images[chosen], labels[chosen]
