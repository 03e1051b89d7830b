"""The sources of Python's standard library as a text of characters: every machine with Python has it.

The text depends on the version of Python, which every result records. A sample is a piece of 64 characters, and its
labels are the 64 characters that follow each of them. Every tenth module is in the test split.
"""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rewire.lab.data.augment import Augment, derived_generator
from rewire.lab.data.formats import Split
from rewire.lab.data.source import Source, register

LENGTH = 64  # characters of a sample
OTHER = 96  # after the newline (0) and the 95 printable characters of ASCII
TRAIN, TEST = 16_384, 2_048


def characters(text: str) -> NDArray[np.uint8]:
    r"""The number of each character: newline 0, printable ASCII 1 to 95, anything else 96.

    >>> characters("A\n~é").tolist()
    [34, 0, 95, 96]
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64)
    printable = (codes >= 32) & (codes <= 126)
    return np.where(codes == 10, 0, np.where(printable, codes - 31, OTHER)).astype(np.uint8)


def read(source: Source, folder: Path) -> tuple[Split, Split]:
    """The modules at the top of the library's folder, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [characters(file.read_text(encoding="utf-8", errors="replace").expandtabs()) for file in files]
    train = np.concatenate([text for number, text in enumerate(texts) if number % 10])
    return _samples(train, source.train, "train"), _samples(np.concatenate(texts[::10]), source.test, "test")


def _samples(text: NDArray[np.uint8], count: int, split: str) -> Split:
    """Pieces of the text and their next characters, at random places that are the same every time."""
    places = torch.randint(len(text) - LENGTH, (count,), generator=derived_generator("stdlib", split))
    pieces = torch.from_numpy(text)[places[:, None] + torch.arange(LENGTH + 1)]
    return pieces[:, None, None, :-1].contiguous(), pieces[:, 1:].long()


register(
    Source(
        name="stdlib",
        label="stdlib",
        about="sources of Python's standard library, 64 characters a sample, to predict the next one; on every machine",
        shape=(1, 1, LENGTH),
        classes=OTHER + 1,
        train=TRAIN,
        test=TEST,
        mean=(0.0,),
        std=(1 / 255,),  # the numbers of characters reach the network as they are
        augment=Augment(padding=0, flip=False),
        read=read,
    )
)
