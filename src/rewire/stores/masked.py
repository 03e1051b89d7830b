"""The masked store: the model's own dense parameters, and a bool mask for each that says which weights exist.

Parameters stay in place, so torch.compile, automatic mixed precision, every optimizer and every checkpoint tool go on
working. The mask is a buffer of the layer's module, next to its weight in the ``state_dict``.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire.layer import LayerSpec, Signal
from rewire.select import Found
from rewire.stores.flat import count, is_expanded, is_finite, put, take, top_where_off, where_true
from rewire.stores.modules import MASK, POSITIONS
from rewire.stores.optimizer import follows_shape, forget, refuse_foreign, state_tensors
from rewire.topology import Edit, Top

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
        mask = torch.zeros(self.shape, dtype=torch.bool, device=self.parameter.device)
        put(mask, active.to(mask.device), True)
        self.module.register_buffer(MASK, mask)
        # Found anew when the mask has changed. Not kept alive: in a dense layer they would be larger than the weight.
        self._active: tuple[tuple[int, int], Callable[[], Tensor | None]] = ((0, -1), lambda: None)
        self._counted: tuple[int, int, int] = (0, -1, 0)  # mask's identity and version, and its nnz then
        self._bits: Tensor | None = None
        self._in_order: tuple[int, int] | None = None  # the mask when all else was zero where it is off
        self._cleared: tuple[weakref.ref[Tensor], int] | None = None  # the gradient last cleared, and its version then

    @property
    def mask(self) -> Tensor:
        """Which weights exist."""
        mask = self.module._buffers.get(MASK)
        if mask is None:
            raise RuntimeError(f"{self.name} has no mask any more: its Rewirer was removed")
        return mask

    @property
    def nnz(self) -> int:
        """How many weights exist; counted anew only when the mask has changed."""
        mask = self.mask
        if self._counted[:2] != (id(mask), mask._version):
            self._counted = (id(mask), mask._version, count(mask))
        return self._counted[2]

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.shape.numel()

    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""
        mask = self.mask
        key, last = self._active
        if key != (id(mask), mask._version) or (active := last()) is None:
            active = where_true(mask)
            self._active = ((id(mask), mask._version), weakref.ref(active))
        return active

    def read(self, signal: Signal) -> Tensor:
        """The signal at the active positions."""
        values = take(self._dense(signal), self.active())
        return values.sign() if signal is Signal.SIGN else values

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The strongest inactive positions."""
        return top_where_off(self._dense(signal), self.mask, k, floor)

    def _dense(self, signal: Signal) -> Tensor:
        if signal is Signal.MOMENTUM:
            assert self.average is not None, "the method did not declare that it reads momentum"
            return self.average
        if signal is Signal.GRAD:
            grad = self.parameter.grad
            return self.parameter.detach().new_zeros(self.shape) if grad is None else grad.detach()
        return self.parameter.detach()

    def clear(self) -> None:
        """Zero the gradient at inactive positions, unless nothing has touched it since it was last cleared."""
        grad = self.parameter.grad
        if grad is None:
            return
        if is_expanded(grad):
            grad = self.parameter.grad = grad.clone(memory_format=torch.contiguous_format)
        if self._cleared and self._cleared[0]() is grad and self._cleared[1] == grad._version:
            return
        # Never by multiplying: a NaN times zero is a NaN.
        bits = self._bits
        current = self._in_order == (id(self.mask), self.mask._version)
        if bits is not None and current and grad.element_size() == bits.element_size():
            grad.view(bits.dtype).bitwise_and_(bits)
        else:
            torch.where(self.mask, grad, _zero(grad), out=grad)
        self._cleared = (weakref.ref(grad), grad._version)

    def zero_inactive(self) -> None:
        """Zero the weight where it does not exist."""
        torch.where(self.mask, self.parameter, _zero(self.parameter), out=self.parameter)

    def put_in_order(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero weight and optimizer state where no weight exists, if the mask or what it goes with was replaced."""
        key = (id(self.mask), self.mask._version)
        if self._in_order != key:
            self.zero_inactive()
            for state in state_tensors(optimizer, self.parameter):
                torch.where(self.mask, state, _zero(state), out=state)
            self._in_order = key
            self.keep_bits()

    def keep_bits(self) -> None:
        """The mask of a small layer once more as all or no bits of a number: an "and" takes a tenth of the time."""
        self._bits = None
        if self.mask.numel() <= SMALL:
            self._bits = self.mask.to(_INTEGERS[self.parameter.element_size()]).neg_()

    def distrust(self, *_loaded: object) -> None:
        """Something was loaded: put in order before the next step."""
        self._in_order = None

    def is_finite(self) -> bool:
        """Whether the whole gradient is finite."""
        return self.parameter.grad is None or is_finite(self.parameter.grad)

    def is_silent(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.parameter.grad is None or not bool(self.parameter.grad.any())

    def observe(self, decay: float, scale: Tensor | None) -> None:
        """Add the dense gradient to its running average; elements that are not finite leave theirs as it was."""
        assert self.average is not None
        if (grad := self.parameter.grad) is not None:
            self.average = self.average.to(grad.device)  # the model may have moved
            grad = grad if scale is None else grad / scale
            moved = self.average.lerp(grad.to(self.average), 1 - decay)
            torch.where(grad.isfinite(), moved, self.average, out=self.average)


class MaskedStore:
    """All masked layers of a model, and the optimizer whose state moves with them."""

    name: ClassVar[str] = "masked"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal)

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[Found],
        active: Sequence[Tensor],
        drawn: Sequence[Tensor | None],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """``drawn``: new values for the active weights of a layer, or ``None`` where they stay what they are."""
        self.optimizer = optimizer
        self.notes: dict[str, str] = {}
        self.layers = [MaskedLayer(one, positions) for one, positions in zip(found, active, strict=True)]
        self.keep_inactive = False  # leave the gradients of inactive weights alone until the step: they will be ranked
        self._enforce: bool | None = None  # whether the optimizer moves weights without gradient; None: not known yet
        self._hooks: list[RemovableHandle] = []
        for layer, positions, values in zip(self.layers, active, drawn, strict=True):
            if values is not None:
                put(layer.parameter.data, positions, values)
            self._hooks.append(layer.parameter.register_post_accumulate_grad_hook(self._clear_hook(layer)))
            self._hooks.append(layer.module.register_load_state_dict_pre_hook(_from_packed))
            self._hooks.append(layer.module.register_load_state_dict_post_hook(layer.distrust))
        self._loading: list[RemovableHandle] = []
        self.follow(optimizer)
        self._put_in_order()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of this optimizer from now on."""
        refuse_foreign(optimizer, {layer.name: layer.parameter for layer in self.layers})
        for hook in self._loading:
            hook.remove()
        self.optimizer, self._enforce = optimizer, None
        self._loading = [optimizer.register_load_state_dict_post_hook(layer.distrust) for layer in self.layers]
        for layer in self.layers:
            layer.distrust()

    def _clear_hook(self, layer: MaskedLayer) -> Callable[[Tensor], None]:
        def clear(parameter: Tensor) -> None:
            if not self.keep_inactive:
                with torch.no_grad():
                    layer.clear()

        return clear

    def track_momentum(self) -> None:
        """Keep an average of the dense gradient of every layer from now on."""
        for layer in self.layers:
            layer.average = torch.zeros_like(layer.parameter, dtype=torch.float32)

    @torch.no_grad()
    def before_step(self, decay: float = 0.9) -> None:
        """Take the dense gradient into its average, where one is kept; then leave only active gradients."""
        for layer in self.layers:
            _fit_loaded_state(self.optimizer, layer)
        self._put_in_order()
        for layer in self.layers:
            if layer.average is not None:
                layer.observe(decay, getattr(self.optimizer, "grad_scale", None))
        self.clear()

    @torch.no_grad()
    def _put_in_order(self) -> None:
        for layer in self.layers:
            layer.put_in_order(self.optimizer)

    @torch.no_grad()
    def clear(self) -> None:
        """Leave nothing for the optimizer at inactive positions."""
        for layer in self.layers:
            layer.clear()

    @torch.no_grad()
    def after_step(self, look: bool) -> None:
        """Undo what an optimizer did to weights without a gradient (Muon does; LBFGS does after a rewiring).

        Whether it does is looked at once, at the first step that moves weights, and again when ``look`` says so:
        looking waits for the device.
        """
        if look or (self._enforce is None and self._moves()):
            moved = any(bool((layer.parameter.ne(0) & ~layer.mask).any()) for layer in self.layers)
            self._enforce = bool(self._enforce) or moved or not follows_shape(self.optimizer)
        if self._enforce:
            for layer in self.layers:
                layer.zero_inactive()

    def _moves(self) -> bool:
        """Whether this step can have moved weights at all: not during a warm-up that begins at zero, for instance."""
        skipped = getattr(self.optimizer, "found_inf", None)
        rates = [group.get("lr", 1.0) for group in self.optimizer.param_groups]
        return all(isinstance(lr, Tensor) or lr > 0 for lr in rates) and not (skipped is not None and bool(skipped))

    @torch.no_grad()
    def apply(self, edits: Sequence[Edit]) -> None:
        """Move weights, masks, gradients and optimizer state to the new topology."""
        for layer, edit in zip(self.layers, edits, strict=True):
            if not len(edit.drop) and not len(edit.grow):
                continue
            put(layer.mask, edit.drop, False)
            put(layer.mask, edit.grow, True)
            put(layer.parameter, edit.drop, 0.0)
            put(layer.parameter, edit.grow, edit.value)
            layer._in_order = (id(layer.mask), layer.mask._version)
            layer.keep_bits()
            touched = torch.cat([edit.drop, edit.grow])
            forget(self.optimizer, layer.parameter, touched)
            if layer.parameter.grad is not None:
                put(layer.parameter.grad, touched, 0.0)

    def remove(self) -> None:
        """Detach from the model: plain parameters, with zeros where no weight was."""
        for hook in self._hooks + self._loading:
            hook.remove()
        for layer in self.layers:
            release(layer.module)


def release(module: nn.Module) -> None:
    """Leave a plain module: no mask, and nothing that waits for a packed checkpoint."""
    module._buffers.pop(MASK, None)
    module._non_persistent_buffers_set.discard(MASK)
    hooks = module._load_state_dict_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _from_packed]:
        del hooks[key]


def _from_packed(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Write out the weight and the mask of a packed checkpoint before they are loaded."""
    positions = state.pop(prefix + POSITIONS, None)
    if positions is not None:
        shape = module._parameters["weight"].shape  # type: ignore[union-attr]
        weight = state[prefix + "weight"].new_zeros(shape)
        mask = torch.zeros(shape, dtype=torch.bool)
        put(weight, positions, state[prefix + "weight"])
        put(mask, positions, True)
        state[prefix + "weight"], state[prefix + MASK] = weight, mask


def _fit_loaded_state(optimizer: torch.optim.Optimizer, layer: MaskedLayer) -> None:
    """State of a packed checkpoint has an entry for each non-zero: write it out."""
    for key, value in optimizer.state.get(layer.parameter, {}).items():
        if isinstance(value, Tensor) and value.dim() == 1 and layer.parameter.dim() > 1 and len(value) == layer.nnz:
            dense = torch.zeros_like(layer.parameter, dtype=value.dtype)
            put(dense, layer.active(), value)
            optimizer.state[layer.parameter][key] = dense


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=like.dtype, device=like.device)
