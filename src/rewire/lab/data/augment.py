"""Whole-batch augmentation and the order of an epoch, both pure functions of (seed, epoch, batch number).

Images keep their type until the batch is normalised. All randomness comes from generators on the CPU whose seeds are
derived from (seed, epoch, batch number) alone, so an interrupted run that resumes in the middle of an epoch sees the
images, the crops and the flips it would have seen, on any device.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What is done to a training batch: pad with zeros and crop at random, mirror half of the images."""

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding is {self.padding}: give 0 (no cropping) or a positive number of pixels.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment (N, C, H, W) images with draws from a CPU generator."""
        count = len(images)
        # Always the same three draws, so that switching one of them off does not change the others.
        rows = torch.randint(2 * self.padding + 1, (count,), generator=generator)
        columns = torch.randint(2 * self.padding + 1, (count,), generator=generator)
        mirror = torch.randint(2, (count,), generator=generator).bool() & self.flip
        return crop(images, rows, columns, mirror, padding=self.padding)


def crop(images: Tensor, rows: Tensor, columns: Tensor, mirror: Tensor, *, padding: int) -> Tensor:
    """Cut each image out of its zero-padded self at (rows[i], columns[i]), then mirror it where mirror[i].

    Args:
        images: (N, C, H, W), any dtype; the result has the same shape, dtype and device.
        rows: (N,) int64 in 0 .. 2 * padding; `padding` itself is the middle, that is no shift.
        columns: the same for the horizontal direction.
        mirror: (N,) bool.
        padding: zeros added on each side.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> crop(image, torch.tensor([2]), torch.tensor([1]), torch.tensor([False]), padding=1).tolist()
    [[[[3, 4], [0, 0]]]]
    >>> crop(image, torch.tensor([1]), torch.tensor([1]), torch.tensor([True]), padding=1).tolist()
    [[[[2, 1], [4, 3]]]]

    """
    count, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding, padding, padding, padding))
    across = torch.arange(width).repeat(count, 1)
    across = torch.where(mirror[:, None], across.flip(1), across) + columns[:, None]
    down = torch.arange(height) + rows[:, None]
    # One gather for the whole batch: row and column of every output pixel, as a position in its padded plane.
    position = down[:, :, None] * padded.shape[3] + across[:, None, :]
    position = position.to(device).view(count, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, position).view(images.shape)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Map images (N, C, H, W) to float32, channel by channel, on their own device.

    (x / 255 - mean) / std for uint8 images, (x - mean) / std for floats.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), mean=[0.5], std=[0.25]).tolist()
    [[[[-2.0, 2.0]]]]

    """
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(
            f"images have {images.shape[1]} channels, but {len(mean)} means and {len(std)} standard deviations "
            "were given: give one of each per channel."
        )
    unit = 255 if images.dtype == torch.uint8 else 1
    offset = torch.tensor(mean, device=images.device).view(-1, 1, 1) * unit
    scale = torch.tensor(std, device=images.device).view(-1, 1, 1) * unit
    return images.float().sub(offset).div_(scale)


def derived_generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator whose seed is a stable function of the key, the same in every process and on every day.

    >>> derived_generator(1, "order", 2).initial_seed() == derived_generator(1, "order", 2).initial_seed()
    True

    """
    # repr keeps 1 and "1", and (1, 23) and (12, 3), apart. Python's own hash() differs between processes.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest, "little") >> 1)
    return generator


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch visits `count` images: an int64 permutation."""
    return torch.randperm(count, generator=derived_generator(seed, "order", epoch))


def steps_per_epoch(count: int, size: int) -> int:
    """Return how many batches `batches` yields for a whole epoch; the last one may be smaller.

    >>> steps_per_epoch(50_000, 128)
    391

    """
    if size < 1:
        raise ValueError(f"the batch size is {size}: give at least 1.")
    return math.ceil(count / size)


def batches(
    images: Tensor,
    labels: Tensor,
    *,
    size: int,
    seed: int,
    epoch: int,
    mean: Sequence[float],
    std: Sequence[float],
    augment: Augment | None = None,
    device: torch.device | str | None = None,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the shuffled, augmented and normalised batches of one training epoch.

    Args:
        images: (N, C, H, W) uint8 or float32; they are shuffled and augmented on their own device.
        labels: (N,) int64, on the same device.
        size: images per batch. The last batch holds the rest; nothing is dropped.
        seed: of the run.
        epoch: counted from 0; every epoch has its own order and augmentations.
        mean: one per channel, of pixels in 0 .. 1.
        std: one per channel.
        augment: what is done to the images; None leaves them as they are.
        device: where to put the batches; the device of the images by default.
        start: the first batch to yield. A run that stopped after k batches resumes with start=k.

    """
    if images.dtype not in (torch.uint8, torch.float32) or len(images) != len(labels):
        raise ValueError(
            f"got {len(images)} images of {images.dtype} and {len(labels)} labels: "
            "give uint8 or float32 images and one label for each."
        )
    order = epoch_order(len(images), seed=seed, epoch=epoch).to(images.device)
    for number in range(start, steps_per_epoch(len(images), size)):
        index = order[number * size : (number + 1) * size]
        chosen = images[index]
        if augment is not None:
            chosen = augment(chosen, derived_generator(seed, "augment", epoch, number))
        # uint8 crosses to the device: a quarter of the bytes that floats would take.
        yield normalise(chosen.to(device), mean, std), labels[index].to(device)


def plain_batches(
    images: Tensor,
    labels: Tensor,
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield normalised batches in the order of the data, every image once: for evaluation."""
    for number in range(steps_per_epoch(len(images), size)):
        part = slice(number * size, (number + 1) * size)
        yield normalise(images[part].to(device), mean, std), labels[part].to(device)
