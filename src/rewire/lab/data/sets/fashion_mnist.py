"""Fashion-MNIST (Xiao et al., 2017)."""

from pathlib import Path

from rewire.lab.data import formats
from rewire.lab.data.archives import Archive
from rewire.lab.data.formats import Split
from rewire.lab.data.source import Source, register

_PUBLISHER = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"


def read(source: Source, folder: Path) -> tuple[Split, Split]:
    """Two pairs of IDX files."""

    def split(prefix: str, records: int) -> Split:
        images, labels = folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"
        return formats.idx(images, labels, records=records, side=source.shape[-1], classes=source.classes)

    return split("train", source.train), split("t10k", source.test)


register(
    Source(
        name="fashion-mnist",
        label="Fashion-MNIST",
        about="Fashion-MNIST, 28x28 grey (Xiao et al., 2017)",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        mean=(0.2860,),
        std=(0.3530,),
        archives=(
            Archive(f"{_PUBLISHER}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            Archive(f"{_PUBLISHER}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe", 29_515),
            Archive(f"{_PUBLISHER}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            Archive(f"{_PUBLISHER}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        folder="fashion-mnist",
        markers=("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"),
        system="/usr/share/datasets/fashion-mnist",
        read=read,
    )
)
