"""Scikit-learn's handwritten digits: nothing has to be downloaded."""

from pathlib import Path

from rewire.lab.data import formats
from rewire.lab.data.augment import Augment
from rewire.lab.data.formats import Split
from rewire.lab.data.source import Source, register


def read(source: Source, folder: Path) -> tuple[Split, Split]:
    """Scikit-learn brings the files."""
    return formats.digits()


register(
    Source(
        name="digits",
        label="digits",
        about="scikit-learn's handwritten digits, 8x8 grey; comes with the package",
        shape=(1, 8, 8),
        classes=10,
        train=1437,
        test=360,
        mean=(0.3058,),
        std=(0.3761,),
        augment=Augment(padding=1, flip=False),  # a mirrored digit is another sign, and 8 pixels have no margin for 4
        read=read,
    )
)
