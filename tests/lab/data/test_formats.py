import gzip
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from rewire.lab.data import formats


def cifar_records(count: int) -> bytes:
    """Record i has coarse label i % 20, fine label i % 100 and planes of 1, 2 and 3, whose first pixel is i."""
    planes = np.repeat(np.array([1, 2, 3], dtype=np.uint8), 1024)
    rows = [np.concatenate([np.array([i % 20, i % 100], dtype=np.uint8), planes]) for i in range(count)]
    for i, row in enumerate(rows):
        row[2] = i
    return b"".join(row.tobytes() for row in rows)


def idx_file(array: npt.NDArray[Any]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def jpeg(mode: str, value: int, side: int = 64) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def tiny_folder(root: Path, classes: int = 3) -> Path:
    """Lay out a Tiny-ImageNet of few classes, named in falling order so that labels differ from the alphabet."""
    names = [f"n{classes - i:08d}" for i in range(classes)]
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    rows = []
    for label, name in enumerate(names):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        (images / f"{name}_0.JPEG").write_bytes(jpeg("RGB", 50 * label))
        (images / f"{name}_1.JPEG").write_bytes(jpeg("L", 50 * label))
        (folder / "val" / "images" / f"val_{label}.JPEG").write_bytes(jpeg("RGB", 50 * label))
        rows.append(f"val_{label}.JPEG\t{name}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return folder


def read_tiny(folder: Path, cache: Path, classes: int = 3) -> tuple[formats.Split, formats.Split]:
    return formats.tiny_imagenet(folder, cache=cache, classes=classes, side=64)


# -- CIFAR-100 ---------------------------------------------------------------------------------------------------------


def test_cifar_records_are_read_as_fine_labels_and_planes(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(cifar_records(30))
    images, labels = formats.cifar100(tmp_path / "train.bin", records=30)
    assert labels.tolist() == list(range(30))
    assert labels.dtype == torch.int64
    assert images.shape == (30, 3, 32, 32)
    assert images.is_contiguous()
    assert images[4, :, 0, 0].tolist() == [4, 2, 3]
    assert images[4, :, 31, 31].tolist() == [1, 2, 3]


def test_damaged_cifar_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    with pytest.raises(FileNotFoundError, match=r"train.bin is missing.*`rewire data fetch`"):
        formats.cifar100(path, records=2)
    path.write_bytes(cifar_records(2)[:-1])
    with pytest.raises(ValueError, match=r"train.bin: found 6147 bytes, expected 6148 .*Extract the official archive"):
        formats.cifar100(path, records=2)
    for column, kind, value in ((0, "coarse", 20), (1, "fine", 100)):
        broken = bytearray(cifar_records(2))
        broken[3074 + column] = value
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"found {kind} label {value} at image 1, expected labels in 0 \.\."):
            formats.cifar100(path, records=2)


# -- Fashion-MNIST -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read_compressed_or_not(tmp_path: Path, compressed: bool) -> None:
    pixels = np.arange(3 * 4 * 4).reshape(3, 4, 4)
    for name, array in (("i", pixels), ("l", np.array([2, 0, 1]))):
        content = idx_file(array)
        (tmp_path / (f"{name}.gz" if compressed else name)).write_bytes(
            gzip.compress(content) if compressed else content
        )
    images, labels = formats.idx(tmp_path / "i.gz", tmp_path / "l.gz", records=3, side=4, classes=3)
    assert images.shape == (3, 1, 4, 4)
    assert images.flatten().tolist() == list(range(48))
    assert labels.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda good: gzip.compress(good)[:-12], "broken gzip stream"),
        (lambda good: b"not gzip at all", "broken gzip stream"),
        (lambda good: gzip.compress(b"\0\0\x08\x01" + good[4:]), "magic number 00000801, expected 00000803"),
        (lambda good: gzip.compress(b""), "magic number"),
        (lambda good: gzip.compress(good[:7]), "shape"),
        (lambda good: gzip.compress(good[:-1]), "47 values, expected 48"),
        (lambda good: gzip.compress(good + b"\0"), "49 values, expected 48"),
        (lambda good: gzip.compress(idx_file(np.zeros((2, 4, 4)))), r"shape \(2, 4, 4\), expected \(3, 4, 4\)"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    (tmp_path / "i.gz").write_bytes(damage(idx_file(np.zeros((3, 4, 4)))))
    (tmp_path / "l.gz").write_bytes(gzip.compress(idx_file(np.zeros(3))))
    with pytest.raises(ValueError, match=rf"i\.gz: found .*{message}"):
        formats.idx(tmp_path / "i.gz", tmp_path / "l.gz", records=3, side=4, classes=3)


def test_idx_labels_out_of_range_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "i.gz").write_bytes(gzip.compress(idx_file(np.zeros((3, 4, 4)))))
    with pytest.raises(FileNotFoundError, match="l is missing"):
        formats.idx(tmp_path / "i.gz", tmp_path / "l.gz", records=3, side=4, classes=3)
    (tmp_path / "l.gz").write_bytes(gzip.compress(idx_file(np.array([0, 1, 3]))))
    with pytest.raises(ValueError, match=r"l\.gz: found label 3 at image 2, expected labels in 0 \.\. 2"):
        formats.idx(tmp_path / "i.gz", tmp_path / "l.gz", records=3, side=4, classes=3)


# -- Tiny-ImageNet -----------------------------------------------------------------------------------------------------


def test_tiny_imagenet_takes_labels_from_wnids_and_makes_grey_images_rgb(tmp_path: Path) -> None:
    (images, labels), (test_images, test_labels) = read_tiny(tiny_folder(tmp_path), tmp_path / "cache")
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert test_labels.tolist() == [0, 1, 2]
    assert images.shape == (6, 3, 64, 64)
    assert images.dtype == torch.uint8
    # In each class a red image comes first and a grey one second; JPEG may be off by a little.
    expected = torch.tensor([[r, 0, 0] if i % 2 == 0 else [r, r, r] for r in (0, 50, 100) for i in (0, 1)])
    assert (images[:, :, 5, 5].int() - expected).abs().max() <= 3
    assert (test_images[:, 0, 5, 5].int() - torch.tensor([0, 50, 100])).abs().max() <= 3


def test_pixels_are_decoded_once_and_anew_when_the_folder_changes(tmp_path: Path) -> None:
    folder, cache = tiny_folder(tmp_path), tmp_path / "cache"
    (before, _), _ = read_tiny(folder, cache)
    files = {p: p.stat().st_mtime_ns for p in (cache / "decoded").iterdir()}
    assert len(files) == 2
    read_tiny(folder, cache)
    assert {p: p.stat().st_mtime_ns for p in (cache / "decoded").iterdir()} == files
    changed = folder / "train" / "n00000003" / "images" / "n00000003_0.JPEG"
    changed.write_bytes(jpeg("RGB", 200))
    os.utime(changed, ns=(0, 0))
    (after, _), _ = read_tiny(folder, cache)
    assert abs(int(after[0, 0, 5, 5]) - 200) <= 3
    assert torch.equal(after[1:], before[1:])
    assert len(list((cache / "decoded").iterdir())) == 2  # the old pixels are gone


@pytest.mark.parametrize("damage", [lambda good: good[:-1], lambda good: b"", lambda good: b"junk" * 100])
def test_damaged_decoded_pixels_are_decoded_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder, cache = tiny_folder(tmp_path), tmp_path / "cache"
    (first, _), _ = read_tiny(folder, cache)
    good = first.clone()
    for path in (cache / "decoded").iterdir():
        path.write_bytes(damage(path.read_bytes()))
    (again, _), _ = read_tiny(folder, cache)
    assert torch.equal(again, good)


def test_changing_the_images_in_memory_does_not_change_the_cache(tmp_path: Path) -> None:
    folder, cache = tiny_folder(tmp_path), tmp_path / "cache"
    (images, _), _ = read_tiny(folder, cache)
    images.fill_(7)
    (again, _), _ = read_tiny(folder, cache)
    assert not (again == 7).all()


@pytest.mark.parametrize("damage", [lambda good: good[: len(good) // 2], lambda good: b"", lambda good: b"GIF89a"])
def test_a_corrupt_jpeg_is_named_and_nothing_is_cached(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder, cache = tiny_folder(tmp_path), tmp_path / "cache"
    path = folder / "train" / "n00000002" / "images" / "n00000002_1.JPEG"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"n00000002_1\.JPEG: found no readable JPEG .* expected a 64x64 JPEG"):
        read_tiny(folder, cache)
    assert list((cache / "decoded").iterdir()) == []


def test_other_faults_of_the_folder_are_named(tmp_path: Path) -> None:
    folder, cache = tiny_folder(tmp_path), tmp_path / "cache"
    with pytest.raises(ValueError, match=r"wnids\.txt: found 3 names, 3 different, expected 200"):
        read_tiny(folder, cache, classes=200)
    table = folder / "val" / "val_annotations.txt"
    good = table.read_text()
    table.write_text(good.replace("n00000002", "n99999999"))
    with pytest.raises(ValueError, match=r"val_annotations\.txt: found .*n99999999.* in line 2"):
        read_tiny(folder, cache)
    table.write_text(good + "val_9.JPEG\tn00000001\t0\t0\t63\t63\n")
    with pytest.raises(ValueError, match=r"only in images/, such as val_9\.JPEG"):
        read_tiny(folder, cache)
    table.write_text(good)
    image = folder / "val" / "images" / "val_1.JPEG"
    image.write_bytes(jpeg("RGB", 0, side=32))
    with pytest.raises(ValueError, match=r"val_1\.JPEG: found an image of 32x32, expected 64x64"):
        read_tiny(folder, cache)
    shutil.rmtree(folder / "train" / "n00000001")
    with pytest.raises(FileNotFoundError, match=r"n00000001.images is missing"):
        read_tiny(folder, cache)
