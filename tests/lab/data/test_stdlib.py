"""The text that every machine has: samples, and the next characters as their labels."""

import torch

from rewire.lab.data.augment import normalise
from rewire.lab.data.datasets import load
from rewire.lab.data.sets.stdlib import LENGTH, characters


def test_characters_by_hand():
    assert characters("A b\n~é").tolist() == [34, 1, 67, 0, 95, 96]


def test_labels_are_the_next_characters():
    data = load("stdlib", limit=200)
    assert data.train_images.shape == (200, 1, 1, LENGTH)
    assert data.train_labels.shape == (200, LENGTH)
    assert torch.equal(data.train_images[:, 0, 0, 1:].long(), data.train_labels[:, :-1])
    assert int(data.train_labels.max()) < data.classes == 97


def test_the_same_samples_every_time_and_none_in_both_splits():
    first, second = load("stdlib"), load("stdlib")
    assert torch.equal(first.train_images, second.train_images)
    train, test = (
        {bytes(one.flatten().tolist()) for one in split} for split in (first.train_images, first.test_images)
    )
    assert len(train & test) < len(test) / 20  # other files, so that only what modules share by copying is in both


def test_the_network_sees_the_numbers_of_the_characters():
    data = load("stdlib", limit=10)
    seen = normalise(data.train_images, data.mean, data.std)
    assert torch.equal(seen.round().long(), data.train_images.long())
