"""The file of a film, appended while a training runs: lines of JSON, some followed by positions in binary.

A line that says ``"bytes": N`` is followed by N bytes and a line feed. The first line describes the layers, and its
bytes say where their weights start; then comes a line for each rewiring and for each set of metrics. What was cut off
at the end, because it is being written or was never finished, is ignored.

Edits are subsets (``subsets.py``) of what the topology allows: first the positions dropped among those that the
previous rewiring grew, which are most of them; then those dropped among the others; then those grown among all that
are inactive by then. So each edit can only be read after those before it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rewire.film import old_format
from rewire.film.subsets import BitReader, BitWriter, Positions

FORMAT = "rewire-film-2"
NAME = "film.rewire"  # inside the folder of a run
NAMES = (NAME, old_format.NAME)
Event = dict[str, Any]  # what a line says; the positions of its layers are sorted arrays


def film_in(folder: Path) -> Path | None:
    """The film in the folder of a run, if there is one."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


class StrayError(ValueError):
    """An edit drops positions that are inactive, or grows some that are active."""


@dataclass
class LayerState:
    """The active positions of a layer: those that the last rewiring grew, and the older ones."""

    size: int
    older: Positions
    newborn: Positions = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def active(self) -> Positions:
        """All active positions, sorted."""
        return _merged(self.older, self.newborn)

    def write_edit(self, writer: BitWriter, drop: Positions, grow: Positions) -> None:
        """Write sorted positions that are dropped and grown, and follow them."""
        young, is_young = _ranks(self.newborn, drop)
        old, is_old = _ranks(self.older, drop[~is_young])
        if not is_old.all():
            raise StrayError(f"{int((~is_old).sum())} positions are dropped that were not active")
        writer.subset(young, len(self.newborn))
        writer.subset(old, len(self.older))
        self._drop(young, old)
        if _ranks(self.older, grow)[1].any():
            raise StrayError("positions are grown that were active already")
        writer.subset(grow - np.searchsorted(self.older, grow), self.size - len(self.older))
        self.newborn = grow

    def read_edit(self, reader: BitReader) -> dict[str, Positions]:
        """The next edit, which is followed."""
        young, old = reader.subset(len(self.newborn)), reader.subset(len(self.older))
        drop = _merged(self.newborn[young], self.older[old])
        self._drop(young, old)
        rank = reader.subset(self.size - len(self.older))
        # The inactive position of rank r has as many active ones before it as have at most r inactive ones before them.
        inactive_before = self.older - np.arange(len(self.older))
        self.newborn = rank + np.searchsorted(inactive_before, rank, side="right")
        return {"drop": drop, "grow": self.newborn}

    def _drop(self, young: Positions, old: Positions) -> None:
        self.older = _merged(np.delete(self.older, old), np.delete(self.newborn, young))


class Encoder:
    """Events as the bytes of a film. The first event is the start; edits must follow from one another."""

    def __init__(self) -> None:
        self._layers: list[LayerState] = []

    def encode(self, event: Event) -> bytes:
        """The bytes of the next event."""
        if event["kind"] not in ("start", "rewiring"):
            return json.dumps(event).encode() + b"\n"
        writer = BitWriter()
        about = {name: value for name, value in event.items() if name != "layers"}
        if event["kind"] == "start":
            about["format"] = FORMAT  # also if the event was read from a film of the first format
            about["layers"] = [{"name": layer["name"], "shape": layer["shape"]} for layer in event["layers"]]
            self._layers = [LayerState(prod(layer["shape"]), layer["active"]) for layer in event["layers"]]
            for state in self._layers:
                writer.subset(state.older, state.size)
        else:
            for state, edit in zip(self._layers, event["layers"], strict=True):
                state.write_edit(writer, edit["drop"], edit["grow"])
        content = writer.to_bytes()
        return json.dumps(about | {"bytes": len(content)}).encode() + b"\n" + content + b"\n"


class Decoder:
    """The events of a film, of this format or the first one, in their order."""

    def __init__(self) -> None:
        self._layers: list[LayerState] = []
        self._old = False

    def decode(self, event: Event, content: bytes) -> Event:
        """What a line and the bytes after it say."""
        if event["kind"] == "start":
            self._old = event["format"] == old_format.FORMAT
        if self._old:
            return old_format.decode_event(event)
        about = {name: value for name, value in event.items() if name != "bytes"}
        reader = BitReader(content)
        if event["kind"] == "start":
            sizes = [prod(layer["shape"]) for layer in event["layers"]]
            self._layers = [LayerState(size, reader.subset(size)) for size in sizes]
            starts = zip(event["layers"], self._layers, strict=True)
            about["layers"] = [layer | {"active": state.older} for layer, state in starts]
        elif event["kind"] == "rewiring":
            about["layers"] = [state.read_edit(reader) for state in self._layers]
        return about


def read(path: Path) -> list[Event]:
    """The events of a film, the start first. What was cut off at the end is left out."""
    data = path.read_bytes()
    if not any(f'"format": "{name}"'.encode() in data[:100] for name in (FORMAT, old_format.FORMAT)):
        raise ValueError(f"{path} is not a film: its first line should say {FORMAT!r}. Record one with rewire.record")
    decoder = Decoder()
    try:
        return [decoder.decode(*line) for line in _lines(data)]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def topology_after(events: Sequence[Event]) -> list[list[int]]:
    """The active positions of each layer, sorted, after all these events of a film."""
    start, *rest = events
    active = [layer["active"] for layer in start["layers"]]
    for event in rest:
        if event["kind"] == "rewiring":
            active = [_edited(positions, edit) for positions, edit in zip(active, event["layers"], strict=True)]
    return [positions.tolist() for positions in active]


def _lines(data: bytes) -> Iterator[tuple[Event, bytes]]:
    """Each whole line, and the bytes after it."""
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        event = json.loads(data[at:end])
        after = end + 1 + event["bytes"] if "bytes" in event else end + 1
        at = after + ("bytes" in event)  # a line feed
        if at > len(data):
            return
        yield event, data[end + 1 : after]


def _edited(positions: Positions, edit: dict[str, Positions]) -> Positions:
    return np.union1d(np.setdiff1d(positions, edit["drop"], assume_unique=True), edit["grow"])


def _ranks(among: Positions, positions: Positions) -> tuple[Positions, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The indices in a sorted list of those positions that are in it, and which these are."""
    ranks = np.searchsorted(among, positions)
    inside = np.zeros(len(positions), bool)
    within = ranks < len(among)
    inside[within] = among[ranks[within]] == positions[within]
    return ranks[inside], inside


def _merged(many: Positions, few: Positions) -> Positions:
    return np.insert(many, np.searchsorted(many, few), few) if len(few) else many
