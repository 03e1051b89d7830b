"""Films of the first format: JSON lines with lists of positions in base64. They are read and not written any more.

A list holds the differences of sorted positions as LEB128 numbers, compressed with zlib.
"""

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "rewire-film-1"
NAME = "film.jsonl"


def decode_event(event: dict[str, Any]) -> dict[str, Any]:
    """The event of a line, with its positions as arrays. Layers without an edit were left empty."""
    lists = {"start": ("active",), "rewiring": ("drop", "grow")}.get(event["kind"])
    if lists is None:
        return event
    return event | {
        "layers": [
            layer | {name: decode(layer[name]) if name in layer else np.zeros(0, np.int64) for name in lists}
            for layer in event["layers"]
        ]
    }


def decode(text: str) -> NDArray[np.int64]:
    """The positions of a list."""
    octets = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    ends = np.flatnonzero(octets < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    place = np.arange(len(octets)) - np.repeat(starts, ends - starts + 1)  # of an octet within its number
    parts = (octets & 127).astype(np.int64) << (7 * place)
    return np.cumsum(np.add.reduceat(parts, starts)) if len(ends) else np.zeros(0, np.int64)
