"""``rewire.record``: write down what a ``Rewirer`` does, for ``rewire watch``."""

import math
import os
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch.distributed as dist
from torch import Tensor

from rewire.core.method import Rewiring
from rewire.core.topology import Edit
from rewire.film import old_format
from rewire.film.format import FORMAT, NAME, Encoder, Event, StrayError, film_in, read, topology_after
from rewire.film.subsets import Positions
from rewire.rewirer.rewirer import Rewirer


class Recorder:
    """Appends to a film at every rewiring. Ordinary steps cost nothing.

    ``log`` adds metrics, which the page draws as curves. ``close`` ends the recording; a film that was not closed, by a
    crash for instance, is whole up to its last line. Of several ranks only rank 0 writes.
    """

    def __init__(self, rewirer: Rewirer, path: Path, title: str = "") -> None:
        self.path = path if path.suffix in (".rewire", ".jsonl") else path / NAME
        self._rewirer, self._title = rewirer, title
        self._encoder = Encoder()
        active = self._whole_layers([layer.active() for layer in rewirer.layers])
        self._file = self._open(self._earlier(active) or [self._start(active)]) if _is_first_rank() else None
        self._remove = rewirer.listen(self._rewired)

    def log(self, **metrics: float) -> None:
        """Metrics of this step, such as ``loss=0.4, accuracy=0.91``. Values that are not finite are left out."""
        finite = {name: number for name, value in metrics.items() if math.isfinite(number := float(value))}
        if finite:
            self._write({"kind": "metrics", "step": self._rewirer.step, **finite})

    def close(self) -> None:
        """End the recording; the film stays."""
        self._remove()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole_layers(self, positions: Sequence[Tensor]) -> list[Positions]:
        """Sorted positions of whole layers: those of a sharded model are collected from all ranks."""
        return [tensor.sort().values.cpu().numpy() for tensor in self._rewirer.store.ranks.join(positions)]

    def _open(self, events: Sequence[Event]) -> BinaryIO:
        """A film that begins with these events, opened to append to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._encoder = Encoder()
        temporary = self.path.with_name(f".unfinished-{os.getpid()}.{self.path.name}")
        temporary.write_bytes(b"".join(map(self._encoder.encode, events)))
        os.replace(temporary, self.path)
        if self.path.name == NAME:
            (self.path.parent / old_format.NAME).unlink(missing_ok=True)  # what it told is in the new film
        file = self.path.open("ab")
        weakref.finalize(self, file.close)  # where nobody calls close()
        return file

    def _earlier(self, active: Sequence[Positions]) -> list[Event]:
        """The film up to this step, if an interrupted training left one and it leads to these active positions."""
        step = self._rewirer.step
        path = self.path if self.path.exists() else film_in(self.path.parent)
        if not step or path is None:
            return []
        try:
            events = [event for event in read(path) if event.get("step", 0) <= step]
            if events and topology_after(events) == [positions.tolist() for positions in active]:
                return events
            reason = (
                f"does not lead to the topology at step {step}: rewirings are missing, or it is of another training"
            )
        except ValueError as error:
            reason = f"cannot be continued ({error})"
        warnings.warn(f"{path} {reason}. The film begins again at this step", stacklevel=4)
        return []

    def _start(self, active: Sequence[Positions]) -> Event:
        layers = [
            {"name": layer.name, "shape": list(layer.shape), "active": positions}
            for layer, positions in zip(self._rewirer.layers, active, strict=True)
        ]
        about = {"title": self._title or type(self._rewirer.model).__name__, "method": repr(self._rewirer.method)}
        return {"format": FORMAT, "kind": "start", "step": self._rewirer.step, **about, "layers": layers}

    def _rewired(self, record: Rewiring, edits: Sequence[Edit]) -> None:
        ranks = self._rewirer.store.ranks
        moved = self._whole_layers([positions for edit in edits for positions in (edit.drop, edit.grow)])
        layers = [{"drop": drop, "grow": grow} for drop, grow in zip(moved[::2], moved[1::2], strict=True)]
        strayed = 0
        if self._file is not None:
            try:
                self._write({"kind": "rewiring", "step": record.step, "layers": layers})
            except StrayError:
                strayed = 1
        if any(number for (number,) in ranks.gather([strayed])):  # all ranks must know
            self._begin_again(record.step)

    def _begin_again(self, step: int) -> None:
        """The topology was changed by something else than a rewiring, such as a checkpoint that was loaded."""
        active = self._whole_layers([layer.active() for layer in self._rewirer.layers])
        if self._file is None:
            return
        warnings.warn(
            f"{self.path} begins again at step {step}: since the last rewiring the topology was changed by something "
            "else. If a checkpoint was loaded, load it before rewire.record is called: then its film goes on",
            stacklevel=4,
        )
        self._file.close()
        self._file = self._open([self._start(active)])

    def _write(self, event: Event) -> None:
        if self._file is not None:
            self._file.write(self._encoder.encode(event))
            self._file.flush()


def _is_first_rank() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def record(rewirer: Rewirer, folder: str | Path, title: str = "") -> Recorder:
    """Record a film of every rewiring from now on into ``folder/film.rewire``; ``rewire watch folder`` shows it.

    Recorded are edits, not masks: less than a byte for each position that is dropped or grown. A training that resumes
    goes on with the film that is there: load its checkpoint first. If the model is sharded (FSDP2), all ranks must call
    this; rank 0 writes what it collects from them.
    """
    return Recorder(rewirer, Path(folder), title)
