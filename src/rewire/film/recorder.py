"""``rewire.record``: write down what a ``Rewirer`` does, for ``rewire watch``."""

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist
from torch import Tensor

from rewire.core.method import Rewiring
from rewire.core.topology import Edit
from rewire.film.format import FORMAT, NAME, encode, read, topology_after
from rewire.rewirer.rewirer import Rewirer


class Recorder:
    """Appends to a film at every rewiring. Ordinary steps cost nothing.

    ``log`` adds metrics, which the page draws as curves. ``close`` ends the recording; a film that was not closed, by a
    crash for instance, is whole up to its last line. Of several ranks only rank 0 writes.
    """

    def __init__(self, rewirer: Rewirer, path: Path, title: str = "") -> None:
        self.path = path / NAME if path.suffix != ".jsonl" else path
        self._rewirer = rewirer
        active = self._whole_layers([layer.active() for layer in rewirer.layers])
        self._file = self._open(title, active) if _is_first_rank() else None
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

    def _whole_layers(self, positions: Sequence[Tensor]) -> list[Tensor]:
        """Sorted positions of whole layers: those of a sharded model are collected from all ranks."""
        return [one.sort().values for one in self._rewirer.store.ranks.join(positions)]

    def _open(self, title: str, active: Sequence[Tensor]) -> TextIO:
        """A new film, or the one that an interrupted training left, cut back to the step where it goes on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._earlier(active) or [self._header(title, active)]
        temporary = self.path.with_name(f".unfinished-{os.getpid()}.{self.path.name}")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.replace(temporary, self.path)
        return self.path.open("a")

    def _earlier(self, active: Sequence[Tensor]) -> list[dict[str, Any]]:
        """The film up to this step, if there is one and it leads to these active positions."""
        step = self._rewirer.step
        if not step or not self.path.exists():
            return []
        lines = [line for line in read(self.path) if line.get("step", 0) <= step]
        if lines and topology_after(lines) == [one.tolist() for one in active]:
            return lines
        warnings.warn(
            f"{self.path} does not lead to the topology at step {step}: rewirings are missing, or it is the film of "
            "another training. It begins again at this step",
            stacklevel=4,
        )
        return []

    def _header(self, title: str, active: Sequence[Tensor]) -> dict[str, Any]:
        layers = [
            {"name": layer.name, "shape": list(layer.shape), "active": _encoded(positions)}
            for layer, positions in zip(self._rewirer.layers, active, strict=True)
        ]
        about = {"title": title or type(self._rewirer.model).__name__, "method": repr(self._rewirer.method)}
        return {"format": FORMAT, "kind": "start", "step": self._rewirer.step, **about, "layers": layers}

    def _rewired(self, record: Rewiring, edits: Sequence[Edit]) -> None:
        moved = self._whole_layers([positions for edit in edits for positions in (edit.drop, edit.grow)])
        if self._file is None:
            return
        layers = [
            {"drop": _encoded(drop), "grow": _encoded(grow)} if len(drop) or len(grow) else {}
            for drop, grow in zip(moved[::2], moved[1::2], strict=True)
        ]
        self._write({"kind": "rewiring", "step": record.step, "layers": layers})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def _is_first_rank() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _encoded(positions: Tensor) -> str:
    return encode(positions.cpu().numpy())


def record(rewirer: Rewirer, folder: str | Path, title: str = "") -> Recorder:
    """Record a film of every rewiring from now on into ``folder/film.jsonl``; ``rewire watch folder`` shows it.

    Recorded are edits, not masks: one to two bytes for each position. A training that resumes goes on with the film
    that is there. If the model is sharded (FSDP2), all ranks must call this; rank 0 writes what it collects from them.
    """
    return Recorder(rewirer, Path(folder), title)
