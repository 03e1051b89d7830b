import numpy as np
import pytest
import torch

from rewire.lab.data import Dataset
from rewire.lab.data.own import to_dataset

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8)
LABELS = np.arange(40) % 4


def dataset(train, test=(IMAGES, LABELS)):
    return to_dataset("mine", lambda: (train, test), None)


def samples(labels):
    return list(zip(IMAGES, labels, strict=True))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_splits_in_different_formats_are_refused(kind):
    format_ = "uint8 and test images in float32: give both in the same format"
    with pytest.raises(ValueError, match=format_):
        dataset((IMAGES, LABELS), (IMAGES.astype(kind), LABELS))
    with pytest.raises(ValueError, match="float32 and test images in uint8"):
        dataset((IMAGES.astype(kind), LABELS))


def test_so_are_those_of_a_dataset():
    images, labels = torch.from_numpy(IMAGES)[:, None], torch.from_numpy(LABELS)
    given = {"train_images": images, "test_images": images.float(), "train_labels": labels, "test_labels": labels}
    mine = Dataset(name="", classes=4, mean=(0.5,), std=(0.25,), augment=None, **given)
    with pytest.raises(ValueError, match="uint8 and test images in float32"):
        to_dataset("mine", lambda: mine, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("split", ["training", "test"])
def test_images_that_are_not_finite_are_refused(value, split):
    whole = IMAGES / 255
    spoilt = np.where(IMAGES[0, 0, 0] == IMAGES, value, whole)
    train, test = (spoilt, whole) if split == "training" else (whole, spoilt)
    with pytest.raises(ValueError, match=f"mine has {split} images with NaN or infinite values"):
        dataset((train, LABELS), (test, LABELS))


def test_images_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="mine has images of type complex128: give uint8 or floats"):
        dataset((IMAGES.astype(complex), LABELS))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (LABELS + 0.9, "the label 0.9"),
        (LABELS / 4, "the label 0.25"),
        (np.where(LABELS == 0, np.nan, LABELS), "the label nan"),
        (LABELS.astype(str), "labels of type <U"),
    ],
)
def test_labels_that_are_not_whole_numbers_are_refused(labels, problem):
    for split in ((IMAGES, labels), samples(labels)):
        with pytest.raises(ValueError, match=f"mine has {problem}.*: give each image one whole number"):
            dataset(split)


def test_one_hot_labels_are_refused():
    with pytest.raises(ValueError, match=r"labels of shape \(40, 4\): give each image one whole number"):
        dataset((IMAGES, np.eye(4)[LABELS]))
    with pytest.raises(ValueError, match="a sample with 4 labels: give each image one whole number"):
        dataset(samples(np.eye(4)[LABELS]))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64])
def test_whole_numbers_of_any_format_are_labels(kind):
    for split in ((IMAGES, LABELS.astype(kind)), samples(LABELS.astype(kind))):
        data = dataset(split)
        assert data.train_labels.dtype == torch.int64
        assert data.train_labels.tolist() == LABELS.tolist()
        assert data.classes == 4
