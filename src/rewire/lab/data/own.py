"""Data sets of one's own: what a function may return, made into a `Dataset`.

A function returns one of these:

- a `Dataset`;
- ``(train, test)``, or a mapping with ``train`` and ``test`` (or ``validation``), each of which is
  - a pair ``(images, labels)`` of arrays or tensors, or
  - an iterable of samples ``(image, label)``, or of mappings with an image and a label, as torchvision's and Hugging
    Face's data sets are.

Images may be PIL images, (H, W), (C, H, W) or (H, W, C), in uint8 or floats; plain feature vectors become images of
height 1; both splits need the same number format, because they are normalised alike. Labels are whole numbers from 0,
one for each image. Means and standard deviations are those of the training images. Only a `Dataset` can ask for
augmentation, or have a label at each of several positions.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewire.lab.data.formats import Split
from rewire.lab.data.source import Dataset

CHANNELS = (1, 3, 4)  # sizes that are taken for channels where the layout of an array is not known
IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixel_values", "x"), ("label", "labels", "fine_label", "y")

_LABELS = "give each image one whole number (labels at several positions need a Dataset)"


def to_dataset(name: str, function: Callable[..., Any], data_dir: Path | None) -> Dataset:
    """Call a function for its data set; it is given ``data_dir`` if it has an argument of that name."""
    wanted = "data_dir" in inspect.signature(function).parameters
    returned = function(data_dir=data_dir) if wanted else function()
    if isinstance(returned, Dataset):
        _check_images(returned.train_images, returned.test_images, name)
        return replace(returned, name=name)
    train, test = (_split(split, name) for split in _two_splits(returned, name))
    _check_images(train[0], test[0], name)
    mean, std = statistics(train[0])
    classes = int(max(train[1].max(), test[1].max())) + 1
    return Dataset(
        name=name,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        classes=classes,
        mean=mean,
        std=std,
        augment=None,
    )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel; of uint8 images in units of 255. A constant channel counts as spread 1.

    >>> statistics(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    ((0.5,), (0.5,))
    """
    scale = 255 if images.dtype == torch.uint8 else 1
    pixels = images.transpose(0, 1).flatten(1).double() / scale
    std = pixels.std(1, correction=0)
    return tuple(pixels.mean(1).tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


def _check_images(train: Tensor, test: Tensor, name: str) -> None:
    """Refuse splits that one mean and one standard deviation cannot normalise."""
    if train.shape[1:] != test.shape[1:]:
        shapes = f"{tuple(train.shape[1:])} and {tuple(test.shape[1:])}"
        raise ValueError(f"{name} has images of shape {shapes} in its two splits: they must be alike")
    if train.dtype != test.dtype:  # uint8 images count in units of 255, others as they are
        types = " and test images in ".join(str(images.dtype).removeprefix("torch.") for images in (train, test))
        raise ValueError(f"{name} has training images in {types}: give both in the same format and the same units")
    for split, images in (("training", train), ("test", test)):
        if images.is_floating_point() and not bool(images.isfinite().all()):
            raise ValueError(f"{name} has {split} images with NaN or infinite values: replace or remove them")


def _two_splits(returned: Any, name: str) -> tuple[Any, Any]:
    if isinstance(returned, Mapping):
        test = next((returned[key] for key in ("test", "validation", "valid") if key in returned), None)
        if "train" in returned and test is not None:
            return returned["train"], test
    elif isinstance(returned, (tuple, list)) and len(returned) == 2:
        return returned[0], returned[1]
    raise ValueError(
        f"{name} returned {type(returned).__name__}: a data set is (train, test), a mapping with train and test, "
        "or a rewire.lab.data.datasets.Dataset"
    )


def _split(given: Any, name: str) -> Split:
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(hasattr(array, "shape") for array in given):
        images, labels = _batch(given[0], name), _labels(np.asarray(given[1]), name)
    else:
        images, labels = _gather(given, name)
    if len(images) != len(labels) or not len(labels):
        raise ValueError(f"{name} has {len(images)} images and {len(labels)} labels: give one label for each image")
    if int(labels.min()) < 0:
        raise ValueError(f"{name} has the label {int(labels.min())}: number classes from 0")
    return images, labels


def _gather(samples: Iterable[Any], name: str) -> Split:
    """Read a data set that yields samples into memory."""
    images, labels = [], []
    for sample in samples:
        image, label = _fields(sample, name)
        images.append(_image(image, name))
        labels.append(_labels(np.asarray(label).reshape(-1), name))
        if len(labels[-1]) != 1:
            raise ValueError(f"{name} has a sample with {len(labels[-1])} labels: {_LABELS}")
    if len({image.shape for image in images}) > 1:
        raise ValueError(f"{name} has images of several sizes: resize them in the function that returns the data set")
    return torch.stack(images) if images else torch.empty(0, 1, 1, 1), torch.cat(labels) if labels else torch.empty(
        0
    ).long()


def _labels(given: "np.ndarray[Any, Any]", name: str) -> Tensor:
    """Class labels as int64. Fractions and one-hot vectors are refused: truncated, they would be other labels."""
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{name} has labels of type {given.dtype}: {_LABELS}")
    if given.ndim != 1:
        raise ValueError(f"{name} has labels of shape {given.shape}: {_LABELS}; of one-hot labels, argmax(1)")
    if given.dtype.kind == "f" and (fractions := given[~np.isfinite(given) | (given != np.trunc(given))]).size:
        raise ValueError(f"{name} has the label {fractions[0]}: {_LABELS}")
    return torch.from_numpy(given.astype(np.int64))


def _fields(sample: Any, name: str) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        image = next((sample[key] for key in IMAGE_KEYS if key in sample), None)
        label = next((sample[key] for key in LABEL_KEYS if key in sample), None)
        if image is None or label is None:
            raise ValueError(f"{name} has samples with {', '.join(sample)}: rename its columns to image and label")
        return image, label
    image, label = sample
    return image, label


def _image(image: Any, name: str) -> Tensor:
    """One image as (C, H, W). What is neither an array nor a tensor is a PIL image, whose channels are last."""
    if hasattr(image, "shape"):
        return _batch(np.asarray(image)[None], name)[0]
    pixels = np.asarray(image)
    return _batch((pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None])[None], name, known=True)[0]


def _batch(given: Any, name: str, *, known: bool = False) -> Tensor:
    """Images as (N, C, H, W), in uint8 or float32; ``known``: they are (N, C, H, W) already."""
    array = np.array(given)  # a copy: torch warns about memory that it may not write to
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has images of type {array.dtype}: give uint8 or floats")
    images = torch.from_numpy(array)
    if images.ndim == 2:
        images = images[:, None, None]
    elif images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise ValueError(f"{name} has images of shape {tuple(images.shape[1:])}: give (C, H, W), (H, W, C) or (H, W)")
    if not known and images.shape[-1] in CHANNELS and images.shape[1] not in CHANNELS:
        images = images.permute(0, 3, 1, 2)
    return (images if images.dtype == torch.uint8 else images.float()).contiguous()
