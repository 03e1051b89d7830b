"""The gradient of a packed layer where no weight exists, from what was recorded of the step."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire.core.dense_ops import is_finite, top_of_tiles
from rewire.core.layer import Signal
from rewire.core.score import AnySignal, ScoreLike, basic_signals, evaluate
from rewire.core.topology import ScoredPositions
from rewire.distributed.group import Group
from rewire.nn.backward_record import BackwardRecord
from rewire.nn.packed import Packed
from rewire.stores.inactive_gradient import TILE, add_gradient_at, gradient_tiles, row_tiles


class PackedGradient:
    """Records a step whose gradients a rewiring will rank, and computes them at inactive positions."""

    def __init__(self, module: Packed, parameter: nn.Parameter) -> None:
        self._module, self._parameter = module, parameter
        self._before_accumulation: RemovableHandle | None = None
        self._was_cleared = True  # whether the gradient was zero or nothing before the last accumulation
        self._raw_norm: Tensor | None = None  # of the gradient as it was accumulated, and averaged over ranks
        self.copies: Group | None = None  # ranks that train copies of the layer together with this one

    def record(self, wanted: bool) -> None:
        """Start a new record of inputs and output gradients for a step that ranks gradients, or stop recording."""
        self._module.backward_record = BackwardRecord() if wanted else None
        if wanted and self._before_accumulation is None:
            self._before_accumulation = self._parameter.register_hook(self._note_cleared_gradient)
        elif not wanted and self._before_accumulation is not None:
            self._before_accumulation.remove()
            self._before_accumulation = None

    @property
    def is_recording(self) -> bool:
        """Whether the coming step ranks gradients."""
        return self._module.backward_record is not None

    def accumulated(self) -> None:
        """After accumulation: take what it is made of and its norm, if the coming step ranks gradients."""
        if self._module.backward_record is not None and self._parameter.grad is not None:
            self._module.backward_record.accumulated(self._was_cleared)
            self.note_norm()

    def note_norm(self) -> None:
        """After accumulation or averaging: remember the norm, to notice later whether the gradient was scaled."""
        if self.is_recording and self._parameter.grad is not None:
            self._raw_norm = self._parameter.grad.norm()

    def _note_cleared_gradient(self, _grad: Tensor) -> None:
        """Before accumulation: ``zero_grad`` may have been called since the last one, without a step between."""
        self._was_cleared = self.is_absent()

    def is_absent(self) -> bool:
        """Whether no gradient of the weights arrived, or only zeros."""
        return self._parameter.grad is None or not bool(self._parameter.grad.any())

    def is_finite(self) -> bool:
        """Whether the inputs and the gradients of weights and outputs are, on every rank."""
        record = self._module.backward_record
        seen = [] if record is None else [one for pair in record.pairs for one in pair] + record.dense_gradients
        grad = self._parameter.grad
        finite = all(map(is_finite, seen if grad is None else [grad, *seen]))
        if self.copies is None:
            return finite
        return all(flag for (flag,) in self.copies.gather([int(finite)]))

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest gradient, which is computed in tiles and never exists whole."""
        assert Signal.GRAD in basic_signals([signal]), f"only gradients exist at inactive positions, not {signal}"
        if k == 0:
            return top_of_tiles((), 0, floor, self._parameter.detach(), self._module.geometry.numel)
        tiles = self._tiles() if isinstance(signal, Signal) else self._score_tiles(signal)
        return top_of_tiles(tiles, k, floor, self._parameter.detach(), self._module.geometry.numel)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted inactive positions: weights are zero there, and the gradient is computed there alone."""
        if not isinstance(signal, Signal):
            return evaluate(signal, [self.read_at(one, positions) for one in signal.reads])
        record = self._module.backward_record
        if signal is not Signal.GRAD or record is None or not len(positions):
            return self._parameter.detach().new_zeros(len(positions))
        gradient = self._parameter.detach().new_zeros(len(positions))
        add_gradient_at(gradient, positions, record.pairs, self._module.geometry, record.dense_gradients)
        if self.copies is not None:
            self.copies.average(gradient)
        return gradient.mul_(self._scale())

    def _score_tiles(self, score: ScoreLike) -> Iterator[tuple[int, Tensor, Tensor]]:
        """A score of the gradient and of weights that are zero, as at inactive positions; active ones are skipped."""
        for begin, grad, used in self._tiles():
            zeros = torch.zeros_like(grad)
            yield begin, evaluate(score, [grad if s is Signal.GRAD else zeros for s in score.reads]), used

    def _tiles(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The first position of each tile, its gradients, and which of its positions are active."""
        record, active, scale = self._module.backward_record, self._module.weight_positions.long(), self._scale()
        if record is None:
            return
        for begin, tile in self._averaged_tiles(record):
            used = torch.zeros(len(tile), dtype=torch.bool)
            low, high = torch.searchsorted(active, torch.tensor([begin, begin + len(tile)])).tolist()
            used[active[low:high] - begin] = True
            yield begin, tile if scale == 1.0 else tile.mul_(scale), used

    def _averaged_tiles(self, record: BackwardRecord) -> Iterator[tuple[int, Tensor]]:
        """The tiles of this rank's data or, if there are other ranks, the mean over the tiles of all of them.

        A rank whose data did not reach the layer takes part with zeros.
        """
        geometry = self._module.geometry
        mine = gradient_tiles(record.pairs, geometry, TILE, record.dense_gradients)
        if self.copies is None:
            yield from mine
            return
        row = geometry.shape[1] * geometry.taps
        for rows in row_tiles(geometry, TILE):
            begin, tile = next(mine, (rows.start * row, None))
            if tile is None:
                tile = self._parameter.detach().new_zeros((rows.stop - rows.start) * row)
            yield begin, self.copies.average(tile)

    def _scale(self) -> float:
        """By how much the gradient was scaled since: unscaling and clipping by norm apply to inactive positions too."""
        grad = self._parameter.grad
        if grad is None or self._raw_norm is None or float(self._raw_norm) == 0:
            return 1.0
        return float(grad.norm() / self._raw_norm)
