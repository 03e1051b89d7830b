"""Tiny-ImageNet (Le and Yang, 2015); its validation split is the test split."""

from pathlib import Path

from rewire.lab.data import formats
from rewire.lab.data.archives import Archive, cache_dir
from rewire.lab.data.formats import Split
from rewire.lab.data.source import Source, register


def read(source: Source, folder: Path) -> tuple[Split, Split]:
    """JPEG files, decoded once into the cache."""
    return formats.tiny_imagenet(folder, cache=cache_dir(), classes=source.classes, side=source.shape[-1])


register(
    Source(
        name="tiny-imagenet",
        label="Tiny-ImageNet",
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
        read=read,
    )
)
