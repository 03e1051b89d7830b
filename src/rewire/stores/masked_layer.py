"""One weight of the masked store: a dense parameter, or this rank's shard of one, and a mask laid out like it."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from rewire.core.dense_ops import count, is_expanded, is_finite, put, take, top_where_off, where_true
from rewire.core.layer import LayerSpec, Signal
from rewire.core.topology import Edit, Top
from rewire.distributed.dtensor import is_sharded, local, span, spread_like
from rewire.model.select import Found
from rewire.model.state_names import MASK
from rewire.stores.optimizer_state import forget, state_tensors

SMALL = 1 << 20  # weights; in larger layers the time to clear a gradient is lost in the time to compute it
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class MaskedLayer:
    """One weight with its mask."""

    def __init__(self, found: Found, active: Tensor) -> None:
        self.spec: LayerSpec = found.spec
        self.name, self.shape = found.spec.name, found.spec.shape
        self.module, self.parameter = found.module, found.parameter
        if self.parameter.is_meta:
            raise ValueError(
                f"{self.name} is on the meta device, where a masked layer has no memory: give it some with "
                "model.to_empty(device='cpu') and initialise it, or use store='packed', which draws it sparse"
            )
        self.average: Tensor | None = None  # of the dense gradient, for methods that read momentum
        self.frozen = False
        self.span = span(self.parameter, self.name)
        self._whole: int | None = len(active) if is_sharded(self.parameter) else None  # nnz, if this is but a shard
        mask = torch.zeros_like(local(self.parameter), dtype=torch.bool, memory_format=torch.contiguous_format)
        put(mask, self.place(active[self.mine(active)]), True)
        self.module.register_buffer(MASK, spread_like(mask, self.parameter))
        # Found anew when the mask has changed. Not kept alive: in a dense layer they would be larger than the weight.
        self._active: tuple[tuple[int, int], Callable[[], Tensor | None]] = ((0, -1), lambda: None)
        self._counted: tuple[int, int, int] = (0, -1, 0)  # mask's identity and version, and its nnz then
        self._bits: Tensor | None = None
        self._in_order: tuple[int, int] | None = None  # the mask when all else was zero where it is off
        self._cleared: tuple[weakref.ref[Tensor], int] | None = None  # the gradient last cleared, and its version then

    @property
    def mask(self) -> Tensor:
        """Which weights exist; laid out like the parameter."""
        mask = self.module._buffers.get(MASK)
        if mask is None:
            raise RuntimeError(f"{self.name} has no mask any more: its Rewirer was removed")
        return mask

    @property
    def held(self) -> Tensor:
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

    def mine(self, positions: Tensor) -> slice:
        """Which of sorted positions of the whole layer are held in this process."""
        if self._whole is None:
            return slice(None)
        ends = torch.tensor([self.span.start, self.span.stop], device=positions.device)
        return slice(*torch.searchsorted(positions, ends).tolist())

    def place(self, positions: Tensor) -> Tensor:
        """Where positions of the whole layer are in what is held here, on its device."""
        positions = positions.to(self.parameter.device)
        return positions - self.span.start if self.span.start else positions

    @property
    def nnz(self) -> int:
        """How many weights exist; counted anew only when the mask has changed, or, of a sharded layer, when told to."""
        return self.nnz_here if self._whole is None else self._whole

    def count_as(self, whole: int) -> None:
        """So many weights exist on all ranks."""
        self._whole = whole

    @property
    def nnz_here(self) -> int:
        """How many of them are in this process."""
        mask = self.held
        if self._counted[:2] != (id(mask), mask._version):
            self._counted = (id(mask), mask._version, count(mask))
        return self._counted[2]

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.shape.numel()

    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""
        mask = self.held
        key, last = self._active
        if key != (id(mask), mask._version) or (active := last()) is None:
            active = where_true(mask)
            active = active.add_(self.span.start) if self.span.start else active
            self._active = ((id(mask), mask._version), weakref.ref(active))
        return active

    def read(self, signal: Signal) -> Tensor:
        """The signal at the active positions."""
        values = take(self._dense(signal), self.place(self.active()))
        return values.sign() if signal is Signal.SIGN else values

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The strongest inactive positions."""
        found = top_where_off(self._dense(signal), self.held, k, floor)
        return Top(found.values, found.positions + self.span.start) if self.span.start else found

    def _dense(self, signal: Signal) -> Tensor:
        if signal is Signal.MOMENTUM:
            assert self.average is not None, "the method did not declare that it reads momentum"
            return local(self.average)
        if signal is Signal.GRAD:
            grad = self.grad
            return torch.zeros_like(self.weight) if grad is None else grad.detach()
        return self.weight

    def clear(self) -> None:
        """Zero the gradient at inactive positions, unless nothing has touched it since it was last cleared."""
        grad = self.grad
        if grad is None:
            return
        if is_expanded(grad):
            grad = self.parameter.grad = grad.clone(memory_format=torch.contiguous_format)
        if self._cleared and self._cleared[0]() is grad and self._cleared[1] == grad._version:
            return
        # Never by multiplying: a NaN times zero is a NaN.
        mask, bits = self.held, self._bits
        current = self._in_order == (id(mask), mask._version)
        if bits is not None and current and grad.element_size() == bits.element_size():
            grad.view(bits.dtype).bitwise_and_(bits)
        else:
            torch.where(mask, grad, _zero(grad), out=grad)
        self._cleared = (weakref.ref(grad), grad._version)

    def zero_inactive(self) -> None:
        """Zero the weight where it does not exist."""
        torch.where(self.held, self.weight, _zero(self.weight), out=self.weight)

    def put_in_order(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero weight and optimizer state where no weight exists, if the mask or what it goes with was replaced."""
        mask = self.held
        if self._in_order != (id(mask), mask._version):
            self.zero_inactive()
            for state in map(local, state_tensors(optimizer, self.parameter)):
                torch.where(mask, state, _zero(state), out=state)
            self.changed()

    def changed(self) -> None:
        """The mask is a new one, and everything else is in order with it.

        The mask of a small layer is kept once more as all or no bits of a number: an "and" takes a tenth of the time.
        """
        mask = self.held
        self._in_order = (id(mask), mask._version)
        self._bits = None
        if self.shape.numel() <= SMALL:
            self._bits = mask.to(_INTEGERS[self.parameter.element_size()]).neg_()

    def distrust(self, *_loaded: object) -> None:
        """Something was loaded: put in order before the next step."""
        self._in_order = None

    @property
    def is_distrusted(self) -> bool:
        """Whether something was loaded since it was last put in order."""
        return self._in_order is None

    def apply(self, edit: Edit, optimizer: torch.optim.Optimizer) -> None:
        """Move weight, mask, gradient and optimizer state to the new topology."""
        drop, grow = self.place(edit.drop), self.place(edit.grow)
        put(self.held, drop, False)
        put(self.held, grow, True)
        put(self.weight, drop, 0.0)
        put(self.weight, grow, edit.value)
        self.changed()
        touched = torch.cat([drop, grow])
        forget(optimizer, self.parameter, touched)
        if self.grad is not None:
            put(self.grad, touched, 0.0)

    def is_finite(self) -> bool:
        """Whether the whole gradient is finite."""
        return self.grad is None or is_finite(self.grad)

    def is_silent(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.grad is None or not bool(self.grad.any())

    def observe(self, decay: float, scale: Tensor | None) -> None:
        """Add the dense gradient to its running average; elements that are not finite leave theirs as it was."""
        assert self.average is not None
        if (grad := self.grad) is not None:
            if self.average.device != grad.device:  # the model may have moved
                self.average = self.average.to(grad.device)
            grad, average = grad if scale is None else grad / scale, local(self.average)
            moved = average.lerp(grad.to(average), 1 - decay)
            torch.where(grad.isfinite(), moved, average, out=average)


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=like.dtype, device=like.device)
