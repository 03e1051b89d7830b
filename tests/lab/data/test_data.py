import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rewire.lab.data import datasets as data

REAL = os.environ.get("REWIRE_DATA")


def real(folder: str) -> pytest.MarkDecorator:
    there = REAL is not None and (Path(REAL) / folder).is_dir()
    return pytest.mark.skipif(not there, reason=f"REWIRE_DATA does not name a folder with {folder}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test away from the caches and the data of the machine it runs on."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("REWIRE_CACHE", str(folder))
    monkeypatch.delenv("REWIRE_DATA", raising=False)
    return folder


# -- digits ------------------------------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_always_alike() -> None:
    first, again = data.load("digits"), data.load("digits")
    assert first.train_images.shape == (1437, 1, 8, 8)
    assert first.test_images.shape == (360, 1, 8, 8)
    assert first.image == data.DATASETS["digits"].shape
    assert first.train_images.dtype == torch.uint8
    assert first.train_labels.dtype == torch.int64
    assert (first.train_images.min().item(), first.train_images.max().item()) == (0, 255)
    assert torch.equal(first.test_images, again.test_images)
    share = first.test_labels.bincount() / (first.test_labels.bincount() + first.train_labels.bincount())
    assert ((share - 0.2).abs() < 0.01).all()


def test_no_digit_is_in_both_parts_and_none_is_lost() -> None:
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    together = torch.cat([digits.train_images, digits.test_images]).flatten(1)
    original = torch.from_numpy(np.rint(load_digits().images * 255 / 16)).to(torch.uint8).flatten(1)
    assert sorted(together.tolist()) == sorted(original.tolist())


def test_digits_statistics_and_augmentation() -> None:
    digits = data.load("digits")
    pixels = digits.train_images.double() / 255
    assert pixels.mean().item() == pytest.approx(digits.mean[0], abs=1e-4)
    assert pixels.std().item() == pytest.approx(digits.std[0], abs=1e-4)
    assert (digits.augment.padding, digits.augment.flip) == (1, False)


def test_limit_keeps_the_classes_balanced() -> None:
    digits = data.load("digits", limit=25)
    assert len(digits.train_images) == len(digits.train_labels) == len(digits.test_images) == 25
    assert sorted(digits.train_labels.bincount().tolist()) == [2] * 5 + [3] * 5
    assert torch.equal(data.load("digits", limit=25).train_images, digits.train_images)
    assert len(data.load("digits", limit=10**6).train_images) == 1437
    with pytest.raises(ValueError, match="limit is 0"):
        data.load("digits", limit=0)


# -- finding data ------------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known_ones() -> None:
    for call in (data.load, data.fetch):
        with pytest.raises(ValueError, match=r"unknown data set 'cifar-100'. Did you mean 'cifar100'\?") as caught:
            call("cifar-100")
        assert all(name in str(caught.value) for name in data.DATASETS)


def test_data_that_is_nowhere_is_an_error_that_says_how_to_get_it() -> None:
    with pytest.raises(FileNotFoundError, match=r"`rewire data fetch cifar100` \(169 MB\), or set REWIRE_DATA"):
        data.load("cifar100")


def small_cifar(monkeypatch: pytest.MonkeyPatch) -> data.Source:
    source = replace(data.DATASETS["cifar100"], train=6, test=3)
    monkeypatch.setitem(data.DATASETS, "cifar100", source)
    return source


def write_cifar(folder: Path, train: int = 6, test: int = 3) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(bytes([0, 7, *[9] * 3072]) * train)
    (folder / "test.bin").write_bytes(bytes([0, 8, *[9] * 3072]) * test)
    return folder


def test_the_order_of_looking(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small_cifar(monkeypatch)
    write_cifar(cache / source.folder)
    assert data.locate(source) == cache / source.folder
    write_cifar(tmp_path / "env" / source.folder)
    monkeypatch.setenv("REWIRE_DATA", str(tmp_path / "env"))
    assert data.locate(source) == tmp_path / "env" / source.folder
    write_cifar(tmp_path / "given" / source.folder)
    assert data.locate(source, tmp_path / "given") == tmp_path / "given" / source.folder
    assert data.locate(source, tmp_path / "given" / source.folder) == tmp_path / "given" / source.folder
    monkeypatch.setenv("REWIRE_DATA", str(tmp_path / "empty"))
    assert data.locate(source) == cache / source.folder
    monkeypatch.chdir(tmp_path / "env")
    monkeypatch.setenv("REWIRE_DATA", "")  # not set, and not the present folder
    assert data.locate(source) == cache / source.folder


def test_a_given_folder_without_the_data_is_an_error_even_if_the_cache_has_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small_cifar(monkeypatch)
    write_cifar(cache / source.folder)
    with pytest.raises(FileNotFoundError, match=r"cifar100 is not in .*expected the folder cifar-100-binary"):
        data.load("cifar100", data_dir=tmp_path)


def test_a_system_package_is_found_last(tmp_path: Path) -> None:
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").touch()
    source = replace(data.DATASETS["fashion-mnist"], system=str(folder))
    assert data.locate(source) == folder


def test_both_files_of_cifar100_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small_cifar(monkeypatch)
    cifar = data.load("cifar100", data_dir=write_cifar(tmp_path / source.folder))
    assert cifar.train_labels.tolist() == [7] * 6
    assert cifar.test_labels.tolist() == [8] * 3
    assert cifar.image == source.shape
    assert (cifar.augment.padding, cifar.augment.flip) == (4, True)


# -- real data ---------------------------------------------------------------------------------------------------------


@real("cifar-100-binary")
def test_real_cifar100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWIRE_DATA", str(REAL))
    cifar = data.load("cifar100")
    assert cifar.train_images.shape == (50_000, 3, 32, 32)
    assert cifar.train_labels.bincount().tolist() == [500] * 100
    assert cifar.test_labels.bincount().tolist() == [100] * 100
    for channel in range(3):
        pixels = cifar.train_images[:, channel].float() / 255
        assert pixels.mean().item() == pytest.approx(cifar.mean[channel], abs=2e-4)
        assert pixels.std().item() == pytest.approx(cifar.std[channel], abs=2e-4)


@real("tiny-imagenet-200")
def test_real_tiny_imagenet(tmp_path: Path) -> None:
    official = Path(str(REAL)) / "tiny-imagenet-200"
    part = tmp_path / "part" / "tiny-imagenet-200"  # ten training images of each class: decoding all takes a while
    for folder in (official / "train").iterdir():
        (part / "train" / folder.name / "images").mkdir(parents=True)
        for image in sorted((folder / "images").iterdir())[:10]:
            (part / "train" / folder.name / "images" / image.name).symlink_to(image)
    for name in ("wnids.txt", "val"):
        (part / name).symlink_to(official / name)
    tiny = data.load("tiny-imagenet", data_dir=part)
    assert tiny.image == (3, 64, 64)
    assert tiny.train_labels.bincount().tolist() == [10] * 200
    assert len(tiny.test_labels.bincount()) == 200
    for channel in range(3):
        pixels = tiny.train_images[:, channel].float() / 255
        assert pixels.mean().item() == pytest.approx(tiny.mean[channel], abs=0.03)
        assert pixels.std().item() == pytest.approx(tiny.std[channel], abs=0.02)
    few = data.load("tiny-imagenet", data_dir=part, limit=400)
    assert few.train_labels.bincount().tolist() == [2] * 200


def test_real_fashion_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    if REAL is not None:
        monkeypatch.setenv("REWIRE_DATA", REAL)
    try:
        data.locate(data.DATASETS["fashion-mnist"])
    except FileNotFoundError:
        pytest.skip("fashion-mnist is neither in REWIRE_DATA nor installed as a system package")
    fashion = data.load("fashion-mnist")
    assert fashion.train_images.shape == (60_000, 1, 28, 28)
    assert fashion.test_labels.bincount().tolist() == [1000] * 10
    pixels = fashion.train_images.float() / 255
    assert pixels.mean().item() == pytest.approx(fashion.mean[0], abs=2e-4)
    assert pixels.std().item() == pytest.approx(fashion.std[0], abs=2e-4)
