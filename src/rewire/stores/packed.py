"""The packed store: only the weights that exist, their gradients and their optimizer state; kernels that skip the rest.

Gradients at inactive positions are computed at rewiring steps alone, tile by tile from the inputs and output gradients
of that step, straight into the streaming top-k. With several micro-batches per step all of them are remembered until
the step, so what is ranked is the gradient that the optimizer uses: the accumulated one.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire.kernels.geometry import Geometry
from rewire.layer import Signal
from rewire.ranks import ALONE, Ranks
from rewire.select import Found
from rewire.stores.flat import is_finite, mask_of, take, top_of_tiles, where_true, written_out
from rewire.stores.masked import MaskedStore
from rewire.stores.masked_layer import MaskedLayer
from rewire.stores.modules import Tape, pack_module, resize, uncovered, unpack_module
from rewire.stores.optimizer import follows_shape, refuse_foreign, reshape_state, state_tensors
from rewire.stores.twins import TWINS, keep_innermost, leave_innermost
from rewire.topology import Edit, Top

TILE = 1 << 20  # weights whose gradient is held at once


class PackedLayer:
    """One weight as values and positions. The values are sorted by position."""

    def __init__(self, found: Found, active: Tensor, values: Tensor) -> None:
        self.spec = found.spec
        self.name, self.shape = found.spec.name, found.spec.shape
        self.module = pack_module(found.module, active, values)
        self.parameter = found.parameter
        self.span = range(found.spec.numel)
        self.average: Tensor | None = None
        self.frozen = False
        self._raw: Tensor | None = None  # the norm of the gradient as it was accumulated

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

    def read(self, signal: Signal) -> Tensor:
        """The signal of the weights that exist."""
        assert signal is not Signal.MOMENTUM, "sparsify refuses methods that read momentum"
        values = self.parameter.detach()
        if signal is Signal.GRAD:
            grad = self.parameter.grad
            return torch.zeros_like(values) if grad is None else grad.detach()
        return values.sign() if signal is Signal.SIGN else values.clone()

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The strongest inactive positions: a dense gradient passes by in tiles and is never held."""
        assert signal is Signal.GRAD, f"only gradients exist at inactive positions, not {signal}"
        return top_of_tiles(self._tiles(), k, floor, self.parameter.detach(), self.shape.numel())

    def _tiles(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        tape, active, scale = self.module.tape, self.active(), self._scale()
        if tape is None or not tape.pairs:
            return
        for begin, tile in gradient_tiles(tape.pairs, self.module.geometry, TILE):
            used = torch.zeros(len(tile), dtype=torch.bool)
            low, high = torch.searchsorted(active, torch.tensor([begin, begin + len(tile)])).tolist()
            used[active[low:high] - begin] = True
            yield begin, tile if scale == 1.0 else tile.mul_(scale), used

    def accumulated(self) -> None:
        """Called when a gradient has arrived: its norm matters only to a step that is ranked."""
        if self.module.tape is not None and self.parameter.grad is not None:
            self._raw = self.parameter.grad.norm()

    def _scale(self) -> float:
        """What was done to the gradient since: unscaling and clipping by norm apply to the inactive part as well."""
        grad = self.parameter.grad
        if grad is None or self._raw is None or float(self._raw) == 0:
            return 1.0
        return float(grad.norm() / self._raw)

    def is_finite(self) -> bool:
        """Whether the gradients of weights and outputs are."""
        seen = [] if self.module.tape is None else [grad for _, grad in self.module.tape.pairs]
        grad = self.parameter.grad
        return all(map(is_finite, seen if grad is None else [grad, *seen]))

    def is_silent(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.parameter.grad is None or not bool(self.parameter.grad.any())

    def apply(self, edit: Edit, optimizer: torch.optim.Optimizer) -> None:
        """Resize values, positions, gradient and optimizer state together; what is grown starts without any state."""
        before = self.active()
        kept = torch.ones(len(before), dtype=torch.bool)
        kept[torch.searchsorted(before, edit.drop)] = False
        stay = where_true(kept)
        grown, order = edit.grow.sort()
        # Both are sorted: a grown weight's place is its rank among those that stay, plus the grown ones before it.
        new = torch.searchsorted(before[stay], grown) + torch.arange(len(grown))
        free = torch.ones(len(stay) + len(grown), dtype=torch.bool)
        free[new] = False
        old = where_true(free)

        def move(held: Tensor, fresh: Tensor | None = None) -> Tensor:
            moved = held.new_zeros(len(free))
            moved[old] = held[stay]
            if fresh is not None:
                moved[new] = fresh.to(held)[order]
            return moved

        grad = self.parameter.grad
        reshape_state(optimizer, self.parameter, move)
        values = move(self.parameter.detach(), edit.value)
        if len(values) == len(before):
            self.parameter.copy_(values)
        else:
            resize(self.parameter, values)
        self.module.weight_positions = move(before, edit.grow).to(self.module.weight_positions.dtype)
        if grad is not None:
            self.parameter.grad = move(grad)


def gradient_tiles(
    pairs: Sequence[tuple[Tensor, Tensor]], geometry: Geometry, size: int
) -> Iterator[tuple[int, Tensor]]:
    """The gradient of a dense weight in row-major pieces of about ``size``, summed over (input, output gradient) pairs.

    Pieces are whole outputs: of several whole groups, or some of one group that is larger than a piece.
    """
    row = geometry.shape[1] * geometry.taps
    group = geometry.shape[0] // geometry.groups
    together = max(size // (group * row), 1) * group  # the outputs of as many groups as a piece can hold
    step = min(together, max(size // row, 1))
    for first in range(0, geometry.shape[0], together):
        last = min(first + together, geometry.shape[0])
        columns = slice(first // group * geometry.shape[1], last // group * geometry.shape[1])
        for begin in range(first, last, step):
            rows = slice(begin, min(begin + step, last))
            total = _rows_gradient(*pairs[0], geometry, rows, columns)
            for x, grad in pairs[1:]:
                total += _rows_gradient(x, grad, geometry, rows, columns)
            yield begin * row, total.reshape(-1)


def _rows_gradient(x: Tensor, grad: Tensor, geometry: Geometry, rows: slice, columns: slice) -> Tensor:
    if grad.shape[2:] == x.shape[2:] == (1, 1) and geometry.groups == geometry.taps == 1:  # a linear layer
        return grad.flatten(1)[:, rows].t() @ x.flatten(1)
    weight = x.new_empty(rows.stop - rows.start, *geometry.shape[1:])
    groups = (columns.stop - columns.start) // geometry.shape[1]
    found: Tensor = torch.ops.aten.convolution_backward(
        *(grad[:, rows].contiguous(), x[:, columns].contiguous(), weight, None, geometry.stride, geometry.padding),
        *(geometry.dilation, False, [0, 0], groups, [False, True, False]),
    )[1]
    return found


class PackedStore:
    """Packed layers where a kernel covers them and masked ones where none does."""

    name: ClassVar[str] = "packed"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal) - {Signal.MOMENTUM}

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[Found],
        active: Sequence[Tensor],
        drawn: Sequence[Tensor | None],
        optimizer: torch.optim.Optimizer,
        ranks: Ranks = ALONE,
    ) -> None:
        """``drawn``: new values for the active weights of a layer, or ``None`` where they stay what they are."""
        self.optimizer, self.ranks = optimizer, ranks
        uses = [id(m._parameters.get("weight")) for m in model.modules()]
        reasons = [
            "shared by several modules" if uses.count(id(one.parameter)) > 1 else uncovered(one.module, one.parameter)
            for one in found
        ]
        self.notes = {one.spec.name: reason for one, reason in zip(found, reasons, strict=True) if reason}
        rest = [i for i, reason in enumerate(reasons) if reason]
        self._masked = MaskedStore(
            model, [found[i] for i in rest], [active[i] for i in rest], [drawn[i] for i in rest], optimizer
        )
        self._packed = {
            i: _pack(found[i], active[i], drawn[i], optimizer) for i, reason in enumerate(reasons) if not reason
        }
        masked = dict(zip(rest, self._masked.layers, strict=True))
        self.layers: list[PackedLayer | MaskedLayer] = [
            self._packed[i] if i in self._packed else masked[i] for i in range(len(found))
        ]
        self._keep = False
        self._hooks: list[RemovableHandle] = []
        for layer in self._packed.values():
            self._hooks.append(layer.parameter.register_post_accumulate_grad_hook(lambda _, it=layer: it.accumulated()))
        self._twins = [module for module in model.modules() if type(module) in TWINS]
        for module in self._twins:
            keep_innermost(module)

    @property
    def keep_inactive(self) -> bool:
        """Whether the next step ranks inactive gradients, so that its inputs and output gradients are remembered."""
        return self._keep

    @keep_inactive.setter
    def keep_inactive(self, keep: bool) -> None:
        self._keep = self._masked.keep_inactive = keep
        for layer in self._packed.values():
            if not keep:
                layer.module.tape = None
            elif layer.module.tape is None:
                layer.module.tape = Tape()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of this optimizer from now on."""
        refuse_foreign(optimizer, {layer.name: layer.parameter for layer in self._packed.values()})
        self._masked.follow(optimizer)
        self.optimizer = optimizer

    def track_momentum(self) -> None:
        """Refused before it comes to this."""
        raise AssertionError("the packed store supplies no momentum")

    @torch.no_grad()
    def before_step(self) -> None:
        """Fit loaded optimizer state to the weights; nothing inactive has to be cleared in a packed layer."""
        for layer in self._packed.values():
            _fit_loaded_state(self.optimizer, layer)
        self._masked.before_step()

    def clear(self) -> None:
        """Masked layers only."""
        self._masked.clear()

    @torch.no_grad()
    def after_step(self, look: bool) -> None:
        """Forget what was remembered for the ranking."""
        if self._packed and not follows_shape(self.optimizer):
            raise ValueError(
                f"{type(self.optimizer).__name__} keeps state that has no entry for each weight, so the packed store "
                "cannot move it with the weights: use store='masked'"
            )
        for layer in self._packed.values():
            layer.module.tape = Tape() if self._keep else None
        self._masked.after_step(look)

    @torch.no_grad()
    def apply(self, edits: Sequence[Edit]) -> None:
        """Move every layer to its new topology."""
        for index, layer in self._packed.items():
            if len(edits[index].drop) or len(edits[index].grow):
                layer.apply(edits[index], self.optimizer)
        self._masked.apply([edit for index, edit in enumerate(edits) if index not in self._packed])

    def refresh(self) -> None:
        """Nothing is held elsewhere."""

    def recount(self) -> None:
        """Nothing is held elsewhere."""

    @torch.no_grad()
    def remove(self) -> None:
        """Back to plain modules with zeros in place, optimizer state included."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._packed.values():
            spread = partial(written_out, positions=layer.active(), shape=layer.shape)
            reshape_state(self.optimizer, layer.parameter, spread)
            unpack_module(layer.module, spread(layer.parameter.detach()))
        for module in self._twins:
            leave_innermost(module)
        self._masked.remove()


def _pack(found: Found, active: Tensor, drawn: Tensor | None, optimizer: torch.optim.Optimizer) -> PackedLayer:
    """Take the values out of the dense weight, unless they were drawn without one."""
    values = take(found.parameter.detach(), active) if drawn is None else drawn.to(found.parameter.dtype)
    reshape_state(optimizer, found.parameter, lambda old: take(old, active))
    return PackedLayer(found, active, values)


def _fit_loaded_state(optimizer: torch.optim.Optimizer, layer: PackedLayer) -> None:
    """State of a masked checkpoint is dense: keep what belongs to the weights that exist."""
    for key, value in optimizer.state.get(layer.parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == layer.shape and layer.shape != layer.parameter.shape:
            optimizer.state[layer.parameter][key] = take(value, layer.active())
    assert all(len(state) == layer.nnz for state in state_tensors(optimizer, layer.parameter))
