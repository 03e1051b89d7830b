import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rewire.lab.data.augment import (
    Augment,
    batches,
    crop,
    derived_generator,
    epoch_order,
    normalise,
    plain_batches,
    steps_per_epoch,
)

# One 3x3 image of two channels; the second channel is the first plus 10.
PLANE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
IMAGE = torch.tensor([[PLANE, [[v + 10 for v in row] for row in PLANE]]], dtype=torch.uint8)


def cut(row: int, column: int, mirror: bool = False, padding: int = 1) -> list[list[int]]:
    where = (torch.tensor([row]), torch.tensor([column]), torch.tensor([mirror]))
    plane: list[list[int]] = crop(IMAGE, *where, padding=padding)[0, 0].tolist()
    return plane


def test_crops_worked_by_hand() -> None:
    assert cut(1, 1) == PLANE
    assert cut(0, 0) == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert cut(2, 2) == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]
    assert cut(0, 2) == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]
    assert cut(1, 1, mirror=True) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert cut(2, 2, mirror=True) == [[0, 6, 5], [0, 9, 8], [0, 0, 0]]
    assert cut(0, 0, padding=0) == PLANE


def test_channels_move_together_and_images_each_on_their_own() -> None:
    twice = IMAGE.repeat(2, 1, 1, 1)
    rows, columns, mirror = torch.tensor([1, 0]), torch.tensor([1, 1]), torch.tensor([True, False])
    out = crop(twice, rows, columns, mirror, padding=1)
    assert out.dtype == torch.uint8
    assert out[0, 1].tolist() == [[13, 12, 11], [16, 15, 14], [19, 18, 17]]
    assert out[1, 0].tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert out[1, 1].tolist() == [[0, 0, 0], [11, 12, 13], [14, 15, 16]]


def test_the_gather_equals_cropping_one_image_after_another() -> None:
    generator = derived_generator("test")
    images = torch.randint(256, (50, 3, 7, 9), generator=generator, dtype=torch.uint8)
    rows, columns = (torch.randint(9, (50,), generator=generator) for _ in range(2))
    mirror = torch.rand(50, generator=generator) < 0.5
    padded = F.pad(images, (4, 4, 4, 4))
    for i, out in enumerate(crop(images, rows, columns, mirror, padding=4)):
        plain = padded[i, :, rows[i] : rows[i] + 7, columns[i] : columns[i] + 9]
        assert torch.equal(out, plain.flip(2) if mirror[i] else plain)


def test_augment_uses_every_offset_and_mirrors_about_half() -> None:
    images = IMAGE[:, :1].repeat(2000, 1, 1, 1)
    out = Augment(padding=1)(images, derived_generator(0))
    variants, counts = torch.unique(out.flatten(1), dim=0, return_counts=True)
    assert len(variants) == 9 * 2  # nine positions, mirrored or not
    assert counts.min() > 2000 / 18 / 2


def test_without_flip_nothing_is_mirrored_and_the_crops_stay_the_same() -> None:
    images = IMAGE.repeat(100, 1, 1, 1)
    plain = Augment(padding=1, flip=False)(images, derived_generator(3))
    mirrored = Augment(padding=1, flip=True)(images, derived_generator(3))
    # Pixels within an image only ever rise from left to right unless they are padding.
    assert all(row == sorted(row) for image in plain.tolist() for row in [[v for v in image[0][1] if v]])
    assert not torch.equal(plain, mirrored)
    same_rows = (plain.sum(dim=(1, 3)) == 0) == (mirrored.sum(dim=(1, 3)) == 0)
    assert same_rows.all()


def test_no_padding_and_no_flip_is_the_identity() -> None:
    images = IMAGE.repeat(5, 1, 1, 1)
    assert torch.equal(Augment(padding=0, flip=False)(images, derived_generator(0)), images)


def test_negative_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="padding is -1"):
        Augment(padding=-1)


def test_normalise_by_hand() -> None:
    images = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)
    out = normalise(images, mean=(0.5, 0.2), std=(0.5, 0.1))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.tensor([[[[-1.0, 1.0]], [[0.0, 2.0]]]]))
    with pytest.raises(ValueError, match="2 channels, but 1 means"):
        normalise(images, mean=(0.5,), std=(0.5,))


IMAGES = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 3, 3).contiguous()
LABELS = torch.arange(10)


def epoch(seed: int = 0, epoch: int = 0, start: int = 0, augment: Augment | None = None) -> list[tuple[Tensor, Tensor]]:
    return list(
        batches(IMAGES, LABELS, size=4, seed=seed, epoch=epoch, start=start, mean=[0.0], std=[1 / 255], augment=augment)
    )


def test_an_epoch_visits_every_image_once_with_its_own_label() -> None:
    out = epoch()
    assert [len(y) for _, y in out] == [4, 4, 2]
    assert len(out) == steps_per_epoch(10, 4)
    labels = torch.cat([y for _, y in out])
    assert sorted(labels.tolist()) == list(range(10))
    torch.testing.assert_close(torch.cat([x for x, _ in out])[:, 0, 1, 1], labels.float())


def test_same_seed_and_epoch_give_the_same_batches_whatever_was_drawn_before() -> None:
    first = epoch(seed=5, epoch=2, augment=Augment(padding=1))
    torch.rand(7)
    again = epoch(seed=5, epoch=2, augment=Augment(padding=1))
    for (x, y), (x2, y2) in zip(first, again, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [tuple(epoch_order(100, seed=s, epoch=e).tolist()) for s in range(5) for e in range(5)]
    assert len(set(orders)) == 25


def test_batches_of_an_epoch_have_augmentations_of_their_own() -> None:
    images = IMAGE[:, :1].repeat(64, 1, 1, 1)
    settings = {"size": 32, "seed": 0, "epoch": 0, "augment": Augment(padding=1)}
    (a, _), (b, _) = batches(images, torch.zeros(64).long(), mean=[0.0], std=[1.0], **settings)  # type: ignore[arg-type]
    assert not torch.equal(a, b)


def test_resuming_in_the_middle_of_an_epoch_continues_it() -> None:
    whole = epoch(seed=1, epoch=3, augment=Augment(padding=1))
    rest = epoch(seed=1, epoch=3, start=1, augment=Augment(padding=1))
    assert len(rest) == 2
    for (x, y), (x2, y2) in zip(whole[1:], rest, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_the_global_generator_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    epoch(augment=Augment(padding=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_keys_are_kept_apart() -> None:
    keys: list[tuple[int | str, ...]] = [(1, 23), (12, 3), (123,), ("1", 23), (1, "23")]
    assert len({derived_generator(*key).initial_seed() for key in keys}) == len(keys)


def test_another_process_derives_the_same_seed() -> None:
    code = "from rewire.lab.data.augment import derived_generator as d; print(d(7, 'order', 1).initial_seed())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == derived_generator(7, "order", 1).initial_seed()


def test_plain_batches_keep_the_order_and_every_image() -> None:
    out = list(plain_batches(IMAGES, LABELS, size=4, mean=[0.0], std=[1 / 255]))
    assert torch.cat([y for _, y in out]).tolist() == list(range(10))
    torch.testing.assert_close(torch.cat([x for x, _ in out])[:, 0, 0, 0], torch.arange(10.0))


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="batch size is 0"):
        steps_per_epoch(10, 0)
    with pytest.raises(ValueError, match="give uint8 or float32 images"):
        next(batches(IMAGES.double(), LABELS, size=4, seed=0, epoch=0, mean=[0.0], std=[1.0]))
    with pytest.raises(ValueError, match=r"10 images of torch\.uint8 and 3 labels"):
        next(batches(IMAGES, LABELS[:3], size=4, seed=0, epoch=0, mean=[0.0], std=[1.0]))
