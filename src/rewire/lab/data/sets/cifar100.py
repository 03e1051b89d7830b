"""CIFAR-100 (Krizhevsky, 2009)."""

from pathlib import Path

from rewire.lab.data import formats
from rewire.lab.data.archives import Archive
from rewire.lab.data.formats import Split
from rewire.lab.data.source import Source, register


def read(source: Source, folder: Path) -> tuple[Split, Split]:
    """The two binary files."""
    train = formats.cifar100(folder / "train.bin", records=source.train)
    return train, formats.cifar100(folder / "test.bin", records=source.test)


register(
    Source(
        name="cifar100",
        label="CIFAR-100",
        about="CIFAR-100, 32x32 colour, fine labels (Krizhevsky, 2009)",
        shape=(3, 32, 32),
        classes=100,
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        folder="cifar-100-binary",
        markers=("train.bin",),
        read=read,
    )
)
