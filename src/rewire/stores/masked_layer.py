"""One weight of the masked store: a dense parameter and a bool mask of the same layout.

Under ``fully_shard`` both are DTensors. Everything here then concerns this rank's shard: ``local_mask``, ``weight`` and
``grad`` are the local tensors, while positions count through the whole weight.
"""

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rewire._torch import buffers_of, version, write_count
from rewire.core.dense_ops import INTEGERS, count, is_expanded, put, take, where_true, zero_off
from rewire.core.layer import LayerSpec
from rewire.core.topology import Edit
from rewire.distributed.dtensor import is_sharded, local, shard_like, span
from rewire.model.select import SelectedWeight
from rewire.stores.copies import add_link
from rewire.stores.loaded_mask import LoadedMask
from rewire.stores.masked_signals import MaskedSignals
from rewire.stores.optimizer.optimizers import Optimizers, trained_by
from rewire.stores.optimizer.rules import SECOND_MOMENT
from rewire.stores.outside_writes import WriteWatch

SMALL = 1 << 20  # weights; in larger layers the time to clear a gradient is lost in the time to compute it

Version = tuple[int, int]  # the identity of a tensor and its version counter: equal as long as nobody wrote to it


class MaskedLayer(MaskedSignals):
    """One weight with its mask."""

    def __init__(self, weight: SelectedWeight, active: Tensor) -> None:
        self.spec: LayerSpec = weight.spec
        self.name, self.shape = weight.spec.name, weight.spec.shape
        self.module, self.parameter, self._mask_name = weight.module, weight.parameter, weight.mask_name
        if self.parameter.is_meta:
            raise ValueError(
                f"{self.name} is on the meta device, where a masked layer has no memory: give it some with "
                "model.to_empty(device='cpu') and initialise it; for a Linear or Conv2d, store='packed' draws it sparse"
            )
        self.average: Tensor | None = None  # running average of the dense gradient, for methods that read momentum
        self.frozen = False
        self.span = span(self.parameter, self.name)
        self._total_nnz: int | None = len(active) if is_sharded(self.parameter) else None  # over all ranks
        mask = torch.zeros_like(local(self.parameter), dtype=torch.bool, memory_format=torch.contiguous_format)
        put(mask, self.to_local(active[self.local_part(active)]), True)
        self.module.register_buffer(self._mask_name, shard_like(mask, self.parameter))
        self.keeps_inactive_grad = False  # until the step, which will rank it
        # Caches, each with the version of the mask that it belongs to. The positions are only weakly referenced: in a
        # dense layer they take more memory than the weight.
        self._positions: tuple[Version, Callable[[], Tensor | None]] = ((0, -1), lambda: None)
        self._counted: tuple[Version, int] = ((0, -1), 0)
        # The mask that weight, optimizer state and ``_bit_mask`` agree with; None after something was loaded.
        self._enforced: Version | None = None
        self._bit_mask: Tensor | None = None  # the mask as integers of all ones or all zeros
        self._cleared: tuple[weakref.ref[Tensor], int] | None = None  # the gradient cleared last, and its write count
        self._cleared_for: tuple[int, Version] = (0, (0, -1))  # its address, and the version of the mask
        self._writes = WriteWatch()
        self.link = add_link(self.module, self.parameter, self.name)
        self.link.before_load, self.link.on_load = self._note_mask, self._loaded
        self._loaded_mask = LoadedMask()

    # Shards: what of the whole weight is in this process.

    @property
    def mask(self) -> Tensor:
        """Which weights exist; laid out like the parameter."""
        mask = buffers_of(self.module).get(self._mask_name)
        if mask is None:
            raise RuntimeError(f"{self.name} has no mask any more: its Rewirer was removed")
        if mask.dtype is not torch.bool:
            self.link.weight.refuse_replaced(self.name)
        return mask

    @property
    def local_mask(self) -> Tensor:
        """The part of the mask that is in this process."""
        return local(self.mask)

    @property
    def weight(self) -> Tensor:
        """The part of the parameter that is in this process."""
        return local(self.parameter).detach()

    @property
    def grad(self) -> Tensor | None:
        """The part of the gradient that is in this process."""
        return None if self.parameter.grad is None else local(self.parameter.grad)

    def local_part(self, positions: Tensor) -> slice:
        """Which of the sorted positions are in this process."""
        if self._total_nnz is None:
            return slice(None)
        ends = torch.tensor([self.span.start, self.span.stop], device=positions.device)
        return slice(*torch.searchsorted(positions, ends).tolist())

    def to_local(self, positions: Tensor) -> Tensor:
        """Positions of the whole weight as positions in the local tensors, on their device."""
        positions = positions.to(self.parameter.device)
        return positions - self.span.start if self.span.start else positions

    # Counts and positions.

    @property
    def nnz(self) -> int:
        """How many weights exist on all ranks together; of a sharded layer, as of the last ``set_total_nnz``."""
        return self.local_nnz if self._total_nnz is None else self._total_nnz

    def set_total_nnz(self, total: int) -> None:
        """So many weights exist on all ranks together."""
        self._total_nnz = total

    @property
    def local_nnz(self) -> int:
        """How many weights exist in this process; counted again only when the mask has changed."""
        mask = self.local_mask
        if self._counted[0] != version(mask):
            self._counted = (version(mask), count(mask))
        return self._counted[1]

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.shape.numel()

    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""
        mask = self.local_mask
        cached_version, cached = self._positions
        if cached_version != version(mask) or (active := cached()) is None:
            active = where_true(mask)
            active = active.add_(self.span.start) if self.span.start else active
            self._positions = (version(mask), weakref.ref(active))
        return active

    # Keeping everything zero where no weight exists.

    @torch.no_grad()
    def gradient_arrived(self) -> None:
        """Backward has accumulated a gradient."""
        if not self.keeps_inactive_grad:
            self.clear_inactive_grad()

    def clear_inactive_grad(self) -> None:
        """Zero the gradient at inactive positions, unless nothing has touched it since it was last cleared."""
        grad = self.grad
        if grad is None:
            return
        if is_expanded(grad):
            grad = grad.clone(memory_format=torch.contiguous_format)
            self.parameter.grad = shard_like(grad, self.parameter)
        if self._is_cleared(grad):
            return
        self._zero_rows(grad, 0, len(grad))
        self._cleared = (weakref.ref(grad), write_count(grad))
        self._cleared_for = (grad.data_ptr(), version(self.local_mask))

    def _is_cleared(self, grad: Tensor) -> bool:
        """Whether nothing has touched the gradient, or the mask, since the gradient was cleared.

        torch does not count writes through ``grad.data``. Those to the whole gradient show at an inactive position that
        is looked at, a new tensor behind ``grad.data`` at its address.
        """
        if self._cleared is None or self._cleared[0]() is not grad or self._cleared[1] != write_count(grad):
            return False
        same = self._cleared_for == (grad.data_ptr(), version(self.local_mask))
        return same and self._writes.is_zero_at_witness(grad)

    def was_moved(self) -> bool:
        """After a step: whether its optimizer has moved inactive weights, as far as the witness tells."""
        return self._writes.witness_moved()

    def gradient_was_written(self) -> bool:
        """After a step: whether the gradient was written to, or replaced, since it was cleared."""
        grad = self.grad
        if grad is None or self._cleared is None:
            return False
        return self._cleared[0]() is not grad or self._cleared[1] != write_count(grad)

    def zero_inactive_state(self, optimizers: Optimizers) -> None:
        """Zero gradient and optimizer state at inactive positions."""
        for _, value, rule in optimizers.entries(self.parameter):
            if rule in (0.0, SECOND_MOMENT):
                zero_off(self.local_mask, local(value))
        self.clear_inactive_grad()

    def zero_inactive_weights(self) -> None:
        """Zero the weight at inactive positions."""
        self.zero_inactive_rows(0, self.shape.numel())

    def remember_weight(self) -> None:
        """The store or the optimizer has just written to the weight, as it may."""
        self._writes.remember(local(self.parameter))

    def undo_outside_writes(self, look: bool) -> bool:
        """Zero the weight at inactive positions if anyone else wrote to it.

        Returns, if asked to look, whether weights were not zero there.
        """
        if not self._writes.was_written(local(self.parameter)):
            return False
        revived = look and bool((self.weight.ne(0) & ~self.local_mask).any())
        self.zero_inactive_weights()
        self.remember_weight()
        self._writes.find_witness(local(self.parameter))
        return revived

    def zero_inactive_rows(self, first: int, room: int) -> tuple[int, int]:
        """Zero the weight at the inactive positions of some rows from ``first`` on: about ``room`` weights.

        Returns the row to go on with, 0 after the last one, and the room that is left.
        """
        row = max(self.shape[1:].numel(), 1)
        last = min(first + max(room // row, 1), len(self.weight))
        # Through `.data`: a backward pass that still needs the weight must not be told that it has changed.
        self._zero_rows(local(self.parameter).data, first, last)
        return (0 if last >= len(self.weight) else last), room - (last - first) * row

    def _zero_rows(self, dense: Tensor, first: int, last: int) -> None:
        """Zero some rows of the weight, or of what is laid out like it, at inactive positions."""
        mask, bits, part = self.local_mask, self._bit_mask, dense[first:last]
        if bits is not None and bits.element_size() == part.element_size() and self._enforced == version(mask):
            part.view(bits.dtype).bitwise_and_(bits[first:last])
        else:
            zero_off(mask[first:last], part)

    def follow(self) -> None:
        """Another optimizer: enforce the topology again. Its state was made, or loaded, for this mask."""
        self.invalidate()
        self._loaded_mask.note_state()

    def state_loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """The state of an optimizer was loaded, of this weight or of others."""
        self.invalidate()
        if id(self.parameter) in trained_by(optimizer):
            self._loaded_mask.note_state()

    def _note_mask(self) -> None:
        self._loaded_mask.note(self.local_mask)

    @property
    def state_is_old(self) -> bool:
        """Whether a mask was loaded, and the optimizer's state is not rearranged for it yet."""
        return self._loaded_mask.state_is_old

    def start_state(self, optimizers: Optimizers, group: Mapping[str, object]) -> bool:
        """After a mask was loaded without optimizer state: start that of the weights that are new.

        Returns whether there are any. If the layer is sharded the answer is the same on every rank.
        """
        grown = self._loaded_mask.settle(self.local_mask)
        if grown is None:
            return False
        for state, newborn in optimizers.start_values(self.parameter, group):
            put(local(state), grown, newborn)
        return len(grown) > 0 or is_sharded(self.parameter)

    def enforce_topology(self, optimizers: Optimizers) -> None:
        """Zero weight and optimizer state at inactive positions, unless that was done for this very mask."""
        mask = self.local_mask
        if self._enforced != version(mask):
            self.zero_inactive_weights()
            for _, value, _ in optimizers.entries(self.parameter):
                zero_off(mask, local(value))
            self._mask_changed()
            self.remember_weight()

    def _mask_changed(self, dropped: Tensor | None = None) -> None:
        """The mask is new, and weight and optimizer state agree with it. ``dropped``: flat positions that it lost.

        For a small layer the mask is also kept as integers of all ones or all zeros: a bitwise and takes a tenth of the
        time of ``torch.where``.
        """
        mask = self.local_mask
        self._enforced = version(mask)
        self._bit_mask = None
        if self.shape.numel() <= SMALL:
            self._bit_mask = mask.to(INTEGERS[self.parameter.element_size()]).neg_()
        self._writes.choose_witness(local(self.parameter), mask, dropped)

    def invalidate(self, *_hook_arguments: object) -> None:
        """Something was loaded: enforce the topology again before the next step."""
        self._enforced = None

    @torch.no_grad()
    def _loaded(self) -> None:
        """Values of a dense checkpoint where no weight exists are zeroed at once: the model may be evaluated now."""
        self.invalidate()
        self.zero_inactive_weights()

    @property
    def is_invalid(self) -> bool:
        """Whether something was loaded since the topology was last enforced."""
        return self._enforced is None

    def apply(self, edit: Edit, optimizers: Optimizers, group: Mapping[str, object]) -> None:
        """Move weight, mask, gradient and optimizer state to the new topology. ``group``: the parameter's options."""
        drop, grow = self.to_local(edit.drop), self.to_local(edit.grow)
        self.link.edit_copies(Edit(drop, grow, edit.value))
        put(self.local_mask, drop, False)
        put(self.local_mask, grow, True)
        put(self.weight, drop, 0.0)
        put(self.weight, grow, edit.value)
        self.remember_weight()
        self._mask_changed(drop)
        for state, newborn in optimizers.start_values(self.parameter, group):
            put(local(state), drop, 0.0)
            put(local(state), grow, newborn)
        if self.grad is not None:
            put(self.grad, torch.cat([drop, grow]), 0.0)

    def read_state(self, state: Tensor) -> Tensor:
        """The values of an optimizer's state tensor at the active positions of this process."""
        return take(local(state), self.to_local(self.active()))

    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None:
        """Write an optimizer's state for some of the active weights, given by their rows in ``active()``."""
        put(local(state), self.to_local(self.active())[rows], values)
