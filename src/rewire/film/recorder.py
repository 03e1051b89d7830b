"""``rewire.record``: write down what a ``Rewirer`` does, for ``rewire watch``."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from rewire.core.method import Rewiring
from rewire.core.ranks import ALONE
from rewire.core.topology import Edit
from rewire.film.format import FORMAT, NAME, encode, read
from rewire.rewirer.rewirer import Rewirer


class Recorder:
    """Appends to a film at every rewiring. Ordinary steps cost nothing.

    ``log`` adds metrics, which the page draws as curves. ``close`` ends the recording; a film that was not closed, by a
    crash for instance, is whole up to its last line.
    """

    def __init__(self, rewirer: Rewirer, path: Path, title: str = "") -> None:
        if rewirer.store.ranks is not ALONE:
            raise ValueError("a film cannot be recorded of a sharded model: each rank knows only its own positions")
        self.path = path / NAME if path.suffix != ".jsonl" else path
        self._rewirer = rewirer
        self._file = self._open(title)
        self._remove = rewirer.listen(self._rewired)

    def log(self, **metrics: float) -> None:
        """Metrics of this step, such as ``loss=0.4, accuracy=0.91``."""
        self._write({"kind": "metrics", "step": self._rewirer.step, **{k: float(v) for k, v in metrics.items()}})

    def close(self) -> None:
        """End the recording; the film stays."""
        self._remove()
        self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, title: str) -> TextIO:
        """A new film, or the one that an interrupted training left, cut back to the step where it goes on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        step = self._rewirer.step
        lines: list[dict[str, Any]] = []
        if step and self.path.exists():
            lines = [line for line in read(self.path) if line.get("step", 0) <= step]
        lines = lines or [self._header(title)]
        temporary = self.path.with_name(f".unfinished-{os.getpid()}.{self.path.name}")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.replace(temporary, self.path)
        return self.path.open("a")

    def _header(self, title: str) -> dict[str, Any]:
        layers = [
            {"name": layer.name, "shape": list(layer.shape), "active": _encoded(layer.active())}
            for layer in self._rewirer.layers
        ]
        about = {"title": title or type(self._rewirer.model).__name__, "method": repr(self._rewirer.method)}
        return {"format": FORMAT, "kind": "start", "step": self._rewirer.step, **about, "layers": layers}

    def _rewired(self, record: Rewiring, edits: Sequence[Edit]) -> None:
        layers = [
            {"drop": _encoded(edit.drop), "grow": _encoded(edit.grow)} if len(edit.drop) or len(edit.grow) else {}
            for edit in edits
        ]
        self._write({"kind": "rewiring", "step": record.step, "layers": layers})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _encoded(positions: Tensor) -> str:
    return encode(positions.sort().values.cpu().numpy())


def record(rewirer: Rewirer, folder: str | Path, title: str = "") -> Recorder:
    """Record a film of every rewiring from now on into ``folder/film.jsonl``; ``rewire watch folder`` shows it.

    Recorded are edits, not masks: about a byte for each weight that moves. A training that resumes goes on with the
    film that is there.
    """
    return Recorder(rewirer, Path(folder), title)
