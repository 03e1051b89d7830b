"""Curves for TensorBoard, where it is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class TensorBoardLog:
    """Writes one point per epoch; a resumed run overwrites the epochs that it trains again."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError(
                "--tensorboard needs the tensorboard package: pip install 'rewire[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def add(self, line: dict[str, Any], names: Sequence[str], sizes: Sequence[int]) -> None:
        """Write one epoch: a line of ``metrics.jsonl``, and the names and sizes of the layers."""
        for key in ("loss", "accuracy", "test_loss", "lr"):
            if key in line:  # not every epoch is evaluated
                self._writer.add_scalar(key, line[key], line["epoch"])
        for name, nnz, size in zip(names, line["nnz"], sizes, strict=True):
            self._writer.add_scalar(f"density/{name}", nnz / size, line["epoch"])
        self._writer.flush()
