"""One weight of the packed store: values sorted by position, the positions, and nothing else."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from rewire.core.dense_ops import is_finite, mask_of, top_of_tiles
from rewire.core.layer import Signal, read_score
from rewire.core.score import AnySignal, ScoreLike, basic_signals, evaluate
from rewire.core.topology import Edit, ScoredPositions
from rewire.model.select import SelectedWeight
from rewire.nn.backward_record import BackwardRecord
from rewire.nn.packed import pack_module
from rewire.stores.copies import add_link
from rewire.stores.inactive_gradient import TILE, gradient_tiles
from rewire.stores.optimizer.optimizers import Optimizers
from rewire.stores.rearrange import Rearrangement
from rewire.stores.sparse_weight import set_values


class PackedLayer:
    """One weight as values and positions. The values are sorted by position."""

    def __init__(self, weight: SelectedWeight, active: Tensor, values: Tensor) -> None:
        self.spec = weight.spec
        self.name, self.shape = weight.spec.name, weight.spec.shape
        self.module = pack_module(weight.module, active, values, weight.spec.name)
        self.parameter = weight.parameter
        self.link = add_link(self.module, self.parameter, self.name)
        self.span = range(weight.spec.numel)
        self.average: Tensor | None = None
        self.frozen = False
        self._before_accumulation: RemovableHandle | None = None
        self._was_cleared = True  # whether the gradient was zero or nothing before the last accumulation
        self._raw_norm: Tensor | None = None  # of the gradient as it was accumulated

    @property
    def nnz(self) -> int:
        """How many weights exist."""
        return len(self.parameter)

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.shape.numel()

    @property
    def mask(self) -> Tensor:
        """Which weights exist, made when asked: for analysis, never for training."""
        return mask_of(self.active(), self.shape)

    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""
        return self.module.weight_positions.long()

    def read(self, signal: AnySignal) -> Tensor:
        """The signal of the weights that exist."""
        if not isinstance(signal, Signal):
            return read_score(self, signal)
        assert signal is not Signal.MOMENTUM, "sparsify refuses methods that read momentum"
        values = self.parameter.detach()
        if signal is Signal.GRAD:
            grad = self.parameter.grad
            return torch.zeros_like(values) if grad is None else grad.detach().clone()  # a step may overwrite it
        return values.sign() if signal is Signal.SIGN else values.clone()

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest gradient, which is computed in tiles and never exists whole."""
        assert Signal.GRAD in basic_signals([signal]), f"only gradients exist at inactive positions, not {signal}"
        tiles = self._tiles() if isinstance(signal, Signal) else self._score_tiles(signal)
        return top_of_tiles(tiles, k, floor, self.parameter.detach(), self.shape.numel())

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at inactive positions: weights are zero there, and gradients are computed in tiles."""
        if not isinstance(signal, Signal):
            return evaluate(signal, [self.read_at(one, positions) for one in signal.reads])
        values = self.parameter.detach().new_zeros(len(positions))
        for begin, tile, _used in self._tiles() if signal is Signal.GRAD else ():
            low, high = torch.searchsorted(positions, torch.tensor([begin, begin + len(tile)])).tolist()
            values[low:high] = tile[positions[low:high] - begin]
        return values

    def _score_tiles(self, score: ScoreLike) -> Iterator[tuple[int, Tensor, Tensor]]:
        """A score of the gradient and of weights that are zero, as at inactive positions; active ones are skipped."""
        for begin, grad, used in self._tiles():
            zeros = torch.zeros_like(grad)
            yield begin, evaluate(score, [grad if s is Signal.GRAD else zeros for s in score.reads]), used

    def _tiles(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        record, active, scale = self.module.backward_record, self.active(), self._scale()
        if record is None:
            return
        for begin, tile in gradient_tiles(record.pairs, self.module.geometry, TILE, record.dense_gradients):
            used = torch.zeros(len(tile), dtype=torch.bool)
            low, high = torch.searchsorted(active, torch.tensor([begin, begin + len(tile)])).tolist()
            used[active[low:high] - begin] = True
            yield begin, tile if scale == 1.0 else tile.mul_(scale), used

    def read_state(self, state: Tensor) -> Tensor:
        """An optimizer's state tensor has a value for each weight, in the order of ``active()``."""
        return state

    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None:
        """Write an optimizer's state for some of the active weights, given by their rows in ``active()``."""
        state[rows] = values.to(state) if isinstance(values, Tensor) else values

    def record(self, wanted: bool) -> None:
        """Start a new record of inputs and output gradients for a step that ranks gradients, or stop recording."""
        self.module.backward_record = BackwardRecord() if wanted else None
        if wanted and self._before_accumulation is None:
            self._before_accumulation = self.parameter.register_hook(self._note_cleared_gradient)
        elif not wanted and self._before_accumulation is not None:
            self._before_accumulation.remove()
            self._before_accumulation = None

    def _note_cleared_gradient(self, _grad: Tensor) -> None:
        """Before accumulation: ``zero_grad`` may have been called since the last one, without a step between."""
        self._was_cleared = self.has_no_gradient()

    def accumulated(self) -> None:
        """After accumulation: take what it is made of and its norm, if the coming step ranks gradients."""
        if self.module.backward_record is not None and self.parameter.grad is not None:
            self.module.backward_record.accumulated(self._was_cleared)
            self._raw_norm = self.parameter.grad.norm()

    def _scale(self) -> float:
        """By how much the gradient was scaled since: unscaling and clipping by norm apply to inactive positions too."""
        grad = self.parameter.grad
        if grad is None or self._raw_norm is None or float(self._raw_norm) == 0:
            return 1.0
        return float(grad.norm() / self._raw_norm)

    def is_finite(self) -> bool:
        """Whether the gradients of weights and outputs are."""
        record = self.module.backward_record
        seen = [] if record is None else [grad for _, grad in record.pairs] + record.dense_gradients
        grad = self.parameter.grad
        return all(map(is_finite, seen if grad is None else [grad, *seen]))

    def has_no_gradient(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.parameter.grad is None or not bool(self.parameter.grad.any())

    def apply(self, edit: Edit, optimizers: Optimizers, group: Mapping[str, object]) -> None:
        """Resize values, positions, gradient and optimizer state together. ``group``: the parameter's options.

        Everything that depends on the old size is read first: the gradient, which torch drops when the parameter is
        resized, and the newborn weights' state, which some optimizers derive from the state of the others.
        """
        before = self.active()
        move = Rearrangement(before, edit)
        self.link.edit_copies(edit)
        grad = self.parameter.grad
        newborn = [value for _, value in optimizers.start_values(self.parameter, group)]
        optimizers.change_state(self.parameter, move)
        set_values(self.parameter, move(self.parameter.detach(), edit.value))
        for (_, state, _), value in zip(optimizers.entries(self.parameter), newborn, strict=True):
            state[move.grown_slots] = value
        self.module.weight_positions = move(before, edit.grow).to(self.module.weight_positions.dtype)
        if grad is not None:
            self.parameter.grad = move(grad)
