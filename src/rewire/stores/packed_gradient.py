"""The gradient of a packed layer where no weight exists, from what was recorded of the step."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire._torch import call_first, version
from rewire.core.dense_ops import is_finite, top_of_tiles
from rewire.core.layer import Signal
from rewire.core.score import AnySignal, ScoreLike, basic_signals, evaluate
from rewire.core.topology import ScoredPositions
from rewire.distributed.group import Group
from rewire.nn.backward_record import BackwardRecord
from rewire.nn.packed import Packed
from rewire.stores.gradient_changes import ASSIGNED, CHANGED, HOOKED, OVERWRITTEN, factor_between, refusal
from rewire.stores.inactive_gradient import TILE, add_gradient_at, gradient_tiles, row_tiles


class PackedGradient:
    """Records a step whose gradients a rewiring will rank, and computes them at inactive positions.

    What is ranked must be the gradient that the optimizer uses. So ``.grad`` is compared with what backward left there,
    before more is accumulated and before the ranking: a multiple is followed, any other change is refused.
    """

    def __init__(self, module: Packed, parameter: nn.Parameter) -> None:
        self._module, self._parameter = module, parameter
        self._before_accumulation: RemovableHandle | None = None
        self._was_cleared = True  # whether the gradient was zeros, or nothing, before the last accumulation
        self._known: Tensor | None = None  # the gradient as it was accumulated, and averaged over ranks
        self._known_version = (0, 0)
        self._arriving: tuple[Tensor, Tensor | None] | None = None  # what backward is about to add, and to what
        self._change = ""  # what other code did to the gradient, if that cannot be followed
        self.scale = 1.0  # by how much the gradient was multiplied since
        self.copies: Group | None = None  # ranks that train copies of the layer together with this one

    def record(self, wanted: bool) -> None:
        """Start a new record of inputs and output gradients for a step that ranks gradients, or stop recording."""
        self._module.backward_record = BackwardRecord() if wanted else None
        self._known, self._arriving, self._change, self._was_cleared = None, None, "", True
        self.note_gradient()  # a loop that never clears gradients accumulates onto those of the step before
        if wanted:
            self._watch()
        elif self._before_accumulation is not None:
            self._before_accumulation.remove()
            self._before_accumulation = None

    def _watch(self) -> None:
        """Be called before each accumulation, unless the layer is frozen."""
        if self._before_accumulation is None and self._parameter.requires_grad:
            self._before_accumulation = self._parameter.register_hook(self._about_to_accumulate)
            call_first(self._parameter, self._before_accumulation)

    @property
    def is_recording(self) -> bool:
        """Whether the coming step ranks gradients."""
        return self._module.backward_record is not None

    @torch.no_grad()
    def _about_to_accumulate(self, incoming: Tensor) -> None:
        """Other code may have cleared, multiplied or changed the gradient since the last accumulation."""
        grad = self._parameter.grad
        self._was_cleared = grad is None or (version(grad) != self._known_version and not bool(grad.any()))
        if self._was_cleared:
            self._change = ""
        else:
            self._follow_changes()
        self._arriving = (incoming.clone(), None if grad is None else grad.clone())

    def accumulated(self) -> None:
        """After accumulation: take what the gradient is made of, if the coming step ranks gradients."""
        record, grad = self._module.backward_record, self._parameter.grad
        if record is None or grad is None:
            return
        factor: float | None = 1.0
        if self._arriving is not None:
            incoming, before = self._arriving
            factor = factor_between(incoming, grad.detach(), before)
        if factor is None:
            self._change = HOOKED
        record.accumulated(self._was_cleared, 1.0 if factor is None else factor)
        self._arriving = None
        self.note_gradient()
        self._watch()  # a layer that was frozen when the record began

    def note_gradient(self) -> None:
        """After accumulation or averaging: remember the gradient, to notice later what other code did to it."""
        grad = self._parameter.grad
        if self.is_recording and grad is not None:
            self._known, self._known_version = grad.detach().clone(), version(grad)

    def _follow_changes(self) -> None:
        """Multiply what was recorded as the gradient was multiplied, or remember that it was changed otherwise."""
        record, grad = self._module.backward_record, self._parameter.grad
        assert record is not None
        assert grad is not None
        factor = None if self._known is None else factor_between(self._known, grad.detach())
        if factor is None:
            self._change = self._unknown_change(record)
        elif factor != 1.0:
            record.multiply(factor)
            self.note_gradient()

    @staticmethod
    def _unknown_change(record: BackwardRecord) -> str:
        return CHANGED if record.pairs or record.dense_gradients else ASSIGNED

    def settle(self, name: str) -> None:
        """Before the ranking: find out by how much the gradient was multiplied, or raise if it is another one."""
        record, grad, self.scale = self._module.backward_record, self._parameter.grad, 1.0
        if record is None:
            return
        if grad is None or (not bool(grad.any()) and not self.is_silent):
            record.clear()  # the optimizer uses nothing of what was recorded
            return
        factor = None if self._known is None else factor_between(self._known, grad.detach())
        if factor is None:
            self._change = self._unknown_change(record)
        elif record.was_overwritten():
            self._change = OVERWRITTEN
        if self._change:
            raise RuntimeError(refusal(name, self._change))
        assert factor is not None
        self.scale = factor

    @property
    def is_silent(self) -> bool:
        """Whether zeros were accumulated, which do not tell by how much they were multiplied since."""
        return self._known is not None and not bool(self._known.any())

    @property
    def tells_scale(self) -> bool:
        """Whether the gradient tells by how much it was multiplied."""
        return self.is_recording and not self.is_absent() and not self.is_silent

    def is_absent(self) -> bool:
        """Whether no gradient of the weights arrived, or only zeros."""
        return self._parameter.grad is None or not bool(self._parameter.grad.any())

    def is_finite(self) -> bool:
        """Whether the inputs and the gradients of weights and outputs are, on every rank."""
        record = self._module.backward_record
        seen = [] if record is None else [tensor for pair in record.pairs for tensor in pair] + record.dense_gradients
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
            return evaluate(signal, [self.read_at(basic_signal, positions) for basic_signal in signal.reads])
        record = self._module.backward_record
        if signal is not Signal.GRAD or record is None or not len(positions):
            return self._parameter.detach().new_zeros(len(positions))
        gradient = self._parameter.detach().new_zeros(len(positions))
        add_gradient_at(gradient, positions, record.pairs, self._module.geometry, record.dense_gradients)
        if self.copies is not None:
            self.copies.average(gradient)
        return gradient.mul_(self.scale)

    def _score_tiles(self, score: ScoreLike) -> Iterator[tuple[int, Tensor, Tensor]]:
        """A score of the gradient and of weights that are zero, as at inactive positions; active ones are skipped."""
        for begin, grad, used in self._tiles():
            zeros = torch.zeros_like(grad)
            yield begin, evaluate(score, [grad if s is Signal.GRAD else zeros for s in score.reads]), used

    def _tiles(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The first position of each tile, its gradients, and which of its positions are active."""
        record, active, scale = self._module.backward_record, self._module.weight_positions.long(), self.scale
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
