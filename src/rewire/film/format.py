"""The file of a film: JSON lines, appended while a training runs. A half-written last line is ignored.

The first line describes the layers and where their weights start; then a line for each rewiring and for each set of
metrics. Lists of positions are differences of sorted integers as LEB128 bytes, compressed with zlib, in base64: about a
byte per moved weight.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "rewire-film-1"
NAME = "film.jsonl"  # inside the folder of a run


def encode(positions: Sequence[int] | NDArray[np.int64]) -> str:
    """Sorted positions as text.

    >>> decode(encode([3, 4, 400])).tolist()
    [3, 4, 400]
    """
    sorted_positions = np.asarray(positions, np.int64)
    gaps = sorted_positions - np.concatenate([[0], sorted_positions[:-1]])
    return base64.b64encode(zlib.compress(_to_bytes(gaps), 6)).decode()


def decode(text: str) -> NDArray[np.int64]:
    """The positions that ``encode`` was given."""
    octets = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    ends = np.flatnonzero(octets < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    place = np.arange(len(octets)) - np.repeat(starts, ends - starts + 1)  # of an octet within its number
    parts = (octets & 127).astype(np.int64) << (7 * place)
    return np.cumsum(np.add.reduceat(parts, starts)) if len(ends) else np.zeros(0, np.int64)


def _to_bytes(numbers: NDArray[np.int64]) -> bytes:
    """Unsigned LEB128: seven bits an octet, lowest first; all but the last have their high bit set."""
    bits = np.frexp(numbers.astype(np.float64))[1]  # exact: positions are below 2**53
    lengths = np.maximum((bits + 6) // 7, 1)
    place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    octets = (np.repeat(numbers, lengths) >> (7 * place)) & 127
    octets[place < np.repeat(lengths, lengths) - 1] |= 128
    return bytes(octets.astype(np.uint8))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a film, the header first. What was cut off in the middle of a line is left out."""
    lines = []
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines.append(json.loads(line))
    if not lines or lines[0].get("format") != FORMAT:
        raise ValueError(f"{path} is not a film: its first line should say {FORMAT!r}. Record one with rewire.record")
    return lines


def topology_after(lines: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The active positions of each layer, sorted, after all these lines of a film."""
    header, *rest = lines
    active = [decode(layer["active"]) for layer in header["layers"]]
    for line in rest:
        if line["kind"] == "rewiring":
            active = [_edited(positions, edit) for positions, edit in zip(active, line["layers"], strict=True)]
    return [positions.tolist() for positions in active]


def _edited(positions: NDArray[np.int64], edit: dict[str, str]) -> NDArray[np.int64]:
    if not edit:
        return positions
    return np.union1d(np.setdiff1d(positions, decode(edit["drop"]), assume_unique=True), decode(edit["grow"]))
