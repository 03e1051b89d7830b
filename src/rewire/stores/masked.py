"""The masked store: the model's own dense parameters, and a bool mask for each that says which weights exist.

Parameters stay in place, so torch.compile, automatic mixed precision, every optimizer and every checkpoint tool go on
working. The mask is a buffer of the layer's module, next to its weight in the ``state_dict``. Where ``fully_shard``
spread the parameter over ranks, its mask is spread alike, and everything here is about this rank's shard.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire.core.dense_ops import mask_of, put, written_out
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE, Ranks, total
from rewire.core.topology import Edit
from rewire.distributed.dtensor import is_sharded
from rewire.model.select import Found
from rewire.model.state_names import MASK, POSITIONS
from rewire.stores.masked_layer import MaskedLayer
from rewire.stores.optimizer_state import follows_shape, refuse_foreign


class MaskedStore:
    """All masked layers of a model, and the optimizer whose state moves with them."""

    name: ClassVar[str] = "masked"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal)
    reads: ClassVar[frozenset[str]] = frozenset({"masked", "packed"})
    spans_ranks: ClassVar[bool] = True
    keeps_shapes: ClassVar[bool] = True

    @classmethod
    def refuse_optimizer(cls, optimizer: torch.optim.Optimizer) -> None:
        """Any optimizer will do."""

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
        self.optimizer = optimizer
        self.notes: dict[str, str] = {}
        self.ranks = ranks
        self.layers = [MaskedLayer(one, positions) for one, positions in zip(found, active, strict=True)]
        self.keep_inactive = False  # leave the gradients of inactive weights alone until the step: they will be ranked
        self._enforce: bool | None = None  # whether the optimizer moves weights without gradient; None: not known yet
        self._hooks: list[RemovableHandle] = []
        for layer, positions, values in zip(self.layers, active, drawn, strict=True):
            if values is not None:
                mine = layer.mine(positions)
                put(layer.weight, layer.place(positions[mine]), values[mine])
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
            moved = any(bool((layer.weight.ne(0) & ~layer.held).any()) for layer in self.layers)
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
            if len(edit.drop) or len(edit.grow):
                layer.apply(edit, self.optimizer)
        self.recount()

    def refresh(self) -> None:
        """Count anew if something was loaded, as it is on all ranks or on none."""
        if self.ranks is not ALONE and any(layer.is_distrusted for layer in self.layers):
            self.recount()

    def recount(self) -> None:
        """Let the ranks tell each other how many weights of each layer they hold. All of them must ask."""
        if self.ranks is not ALONE:
            for layer, whole in zip(self.layers, total(self.ranks, (one.nnz_here for one in self.layers)), strict=True):
                layer.count_as(whole)

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
        if is_sharded(module._parameters["weight"]):
            raise ValueError(
                f"{prefix}weight is packed in this checkpoint and sharded here: load it into a masked model in one "
                "process, and save that with rewire.distributed.save"
            )
        shape = module._parameters["weight"].shape  # type: ignore[union-attr]
        state[prefix + "weight"] = written_out(state[prefix + "weight"], positions, shape)
        state[prefix + MASK] = mask_of(positions, shape)


def _fit_loaded_state(optimizer: torch.optim.Optimizer, layer: MaskedLayer) -> None:
    """State of a packed checkpoint has an entry for each non-zero: write it out."""
    if is_sharded(layer.parameter):
        return  # a packed checkpoint was refused
    for key, value in optimizer.state.get(layer.parameter, {}).items():
        if isinstance(value, Tensor) and value.dim() == 1 and layer.parameter.dim() > 1 and len(value) == layer.nnz:
            dense = torch.zeros_like(layer.parameter, dtype=value.dtype)
            put(dense, layer.active(), value)
            optimizer.state[layer.parameter][key] = dense
