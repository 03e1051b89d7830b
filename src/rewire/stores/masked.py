"""The masked store: the model's own dense parameters, and a bool mask for each that says which weights exist.

Parameters stay in place, so torch.compile, automatic mixed precision, every optimizer and every checkpoint tool go on
working. The mask is a buffer of the layer's module, next to its weight in the ``state_dict``. Where ``fully_shard``
shards the parameter, the mask is sharded alike, and everything here concerns this rank's shard.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire._torch import call_after_accumulation, parameters_of, remove_buffer, remove_load_hook
from rewire.core.dense_ops import mask_of, put, written_out
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE, Ranks, total
from rewire.core.score import MOMENTUM_DECAY
from rewire.core.topology import Edit
from rewire.distributed.dtensor import is_sharded
from rewire.distributed.group import Group, Traffic
from rewire.model.loaded_topology import refuse_impossible
from rewire.model.select import SelectedWeight
from rewire.model.state_names import mask_name, masks_of, packed_in, positions_name
from rewire.stores.copies import links_of, unlink
from rewire.stores.masked_layer import MaskedLayer
from rewire.stores.optimizer.optimizers import Optimizers, found_inf
from rewire.stores.optimizer.state import packed_entries
from rewire.stores.outside_writes import warn_of_moves, warn_of_writes

# Weights whose topology is enforced at every step, in turn. An accelerator takes as long for a million as for one.
SWEPT = {"cpu": 1 << 16}
SWEPT_ELSEWHERE = 1 << 20
SWEPT_LAYERS = 4  # or so many layers, if they are small


class MaskedStore:
    """All masked layers of a model, and the optimizers whose state moves with them."""

    name: ClassVar[str] = "masked"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal)
    reads: ClassVar[frozenset[str]] = frozenset({"masked", "packed"})
    spans_ranks: bool = True
    keeps_shapes: ClassVar[bool] = True

    @classmethod
    def refuse_optimizers(cls, optimizers: Optimizers, weights: Mapping[str, Tensor]) -> None:
        """Any optimizer will do."""

    def __init__(
        self,
        model: nn.Module,
        weights: Sequence[SelectedWeight],
        active: Sequence[Tensor],
        drawn: Sequence[Tensor | None],
        optimizers: Optimizers,
        ranks: Ranks = ALONE,
        keep_masked: Collection[str] = (),
    ) -> None:
        """``drawn``: initial values for the active weights of a layer, or ``None`` to keep those of the parameter.

        ``keep_masked`` is for other stores: here all layers are masked.
        """
        self.optimizers = optimizers
        self.notes: dict[str, str] = {}
        self.ranks = ranks
        self.layers = [MaskedLayer(weight, positions) for weight, positions in zip(weights, active, strict=True)]
        self._keep = False
        self._decay = MOMENTUM_DECAY
        self._moves_inactive: bool | None = None  # does the optimizer move weights without gradient?
        self._warned = False  # whether a warning said that inactive weights were written from outside
        self._sweep_at = (0, 0)  # the layer and the row whose topology is enforced next
        self._hooks: list[RemovableHandle] = []
        for layer, positions, values in zip(self.layers, active, drawn, strict=True):
            if values is not None:
                part = layer.local_part(positions)
                put(layer.weight, layer.to_local(positions[part]), values[part])
            self._hooks.append(call_after_accumulation(layer.parameter, layer.gradient_arrived))
            self._hooks.append(layer.module.register_load_state_dict_pre_hook(_unpack_checkpoint))
        self._loading: list[RemovableHandle] = []
        self.follow(optimizers)
        self._enforce_topology()

    @property
    def resized(self) -> list[nn.Parameter]:
        """No parameter changes its shape."""
        return []

    def average_over(self, copies: Group, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing to do: DDP averages dense gradients."""

    @property
    def gradient_traffic(self) -> Traffic:
        """Nothing: what DDP sends is not counted."""
        return Traffic()

    @property
    def keep_inactive_grads(self) -> bool:
        """Whether inactive gradients are kept until the next step, which ranks them."""
        return self._keep

    @keep_inactive_grads.setter
    def keep_inactive_grads(self, keep: bool) -> None:
        self._keep = keep
        for layer in self.layers:
            layer.keeps_inactive_grad = keep

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimizer: in most trainings there is no other."""
        return self.optimizers.all[0]

    def follow(self, optimizers: Optimizers) -> None:
        """Move the state of these optimizers from now on."""
        optimizers.refuse_untrained({layer.name: layer.parameter for layer in self.layers})
        for hook in self._loading:
            hook.remove()
        is_other = any(all(new is not old for old in self.optimizers.all) for new in optimizers.all)
        self.optimizers, self._moves_inactive = optimizers, None
        self._loading = [
            optimizer.register_load_state_dict_post_hook(layer.state_loaded)
            for optimizer in optimizers.all
            for layer in self.layers
        ]
        for layer in self.layers:
            if is_other:
                layer.follow()
            else:
                layer.invalidate()

    def track_momentum(self, decay: float) -> None:
        """Keep a running average of the dense gradient of every layer from now on."""
        self._decay = decay
        for layer in self.layers:
            layer.average = torch.zeros_like(layer.parameter, dtype=torch.float32)

    @torch.no_grad()
    def before_step(self) -> set[str]:
        """Update the average of the dense gradient, where one is kept; then clear the inactive gradients."""
        for layer in self.layers:
            layer.link.weight.refuse_replaced(layer.name)
        newborn = self._fit_loaded_state()
        self._enforce_topology()
        self._undo_outside_writes()
        for layer in self.layers:
            if layer.average is not None:
                layer.update_average(self._decay, self.optimizers.grad_scale)
        self.clear_inactive_grads()
        return newborn

    def _fit_loaded_state(self) -> set[str]:
        """After loading: convert packed state, start the state of new weights. Returns the layers that have any."""
        invalid = [layer for layer in self.layers if layer.is_invalid]
        groups = self.optimizers.groups() if invalid else {}
        newborn = set()
        for layer in invalid:
            _convert_loaded_state(self.optimizers, layer)
            if layer.start_state(self.optimizers, groups.get(id(layer.parameter), {})):
                newborn.add(layer.name)
        return newborn

    @torch.no_grad()
    def _enforce_topology(self) -> None:
        for layer in self.layers:
            layer.enforce_topology(self.optimizers)

    def _undo_outside_writes(self) -> None:
        look = not self._warned and all(layer.parameter.device.type == "cpu" for layer in self.layers)
        revived = [layer.name for layer in self.layers if layer.undo_outside_writes(look)]
        if revived:
            self._warned = True
            warn_of_writes(revived)

    @torch.no_grad()
    def clear_inactive_grads(self) -> None:
        """Zero the gradients of weights that do not exist, so that no optimizer moves them."""
        for layer in self.layers:
            layer.clear_inactive_grad()

    @torch.no_grad()
    def after_step(self, may_wait: bool) -> None:
        """Zero weights that the optimizer moved although their gradient was zero (Muon; LBFGS after a rewiring).

        Whether it does so is checked at the first step that moves weights, and whenever ``may_wait``: the check waits
        for the device. On the CPU one inactive weight of each layer is read after every step.
        """
        if may_wait or (self._moves_inactive is None and self._can_move()):
            moved = any(bool((layer.weight.ne(0) & ~layer.local_mask).any()) for layer in self.layers)
            self._moves_inactive = (
                bool(self._moves_inactive) or moved or not self.optimizers.have_only_elementwise_state
            )
        self._undo_moves()
        if self._moves_inactive:
            for layer in self.layers:
                layer.zero_inactive_weights()
        else:
            self._sweep()
        for layer in self.layers:
            layer.remember_weight()

    def _undo_moves(self) -> None:
        """Undo what gradients did that somebody wrote after they were cleared: a step hook that came after ours."""
        moved = [layer for layer in self.layers if layer.was_moved()]
        written = [layer for layer in self.layers if layer.gradient_was_written()]
        if moved and self._moves_inactive is False:
            self._moves_inactive = True
            warn_of_moves([layer.name for layer in moved])
        fused = {key for key, group in self.optimizers.groups().items() if group.get("fused")} if written else set()
        for layer in written:
            layer.zero_inactive_weights()
        # A fused optimizer writes to gradients itself: that alone says nothing about its state.
        touched = moved + [layer for layer in written if layer not in moved and id(layer.parameter) not in fused]
        # An optimizer that keeps matrices (SOAP) moves weights itself, and may keep the rest in their basis.
        if touched and self.optimizers.have_only_elementwise_state:
            for layer in touched:
                layer.zero_inactive_state(self.optimizers)

    def _sweep(self) -> None:
        """Zero inactive weights of a few layers or rows, in turn.

        This undoes what ``undo_outside_writes`` cannot see: writes through ``.data`` to a part of a weight, or on an
        accelerator. Looking for them would take longer.
        """
        if not self.layers:
            return
        (index, row), room = self._sweep_at, SWEPT.get(self.layers[0].parameter.device.type, SWEPT_ELSEWHERE)
        for _ in range(min(SWEPT_LAYERS, len(self.layers))):
            row, room = self.layers[index].zero_inactive_rows(row, room)
            index = index if row else (index + 1) % len(self.layers)
            if room <= 0:
                break
        self._sweep_at = (index, row)

    def _can_move(self) -> bool:
        """Whether this step can move any weight: not while a warm-up has a learning rate of zero, for instance."""
        rates = [group.get("lr", 1.0) for optimizer in self.optimizers.all for group in optimizer.param_groups]
        return all(isinstance(lr, Tensor) or lr > 0 for lr in rates) and not any(map(found_inf, self.optimizers.all))

    def settle_gradients(self) -> None:
        """Gradients of inactive weights exist, and are ranked as they are."""

    @torch.no_grad()
    def apply(self, edits: Sequence[Edit]) -> None:
        """Move weights, masks, gradients and optimizer state to the new topology."""
        for layer in self.layers:
            layer.link.refuse_strayed_averages()
        groups = self.optimizers.groups()
        for layer, edit in zip(self.layers, edits, strict=True):
            if len(edit.drop) or len(edit.grow):
                layer.apply(edit, self.optimizers, groups.get(id(layer.parameter), {}))
        self.recount()

    def refresh(self) -> None:
        """Count again if something was loaded. All ranks load, or none."""
        if self.ranks is not ALONE and any(layer.is_invalid for layer in self.layers):
            self.recount()

    def recount(self) -> None:
        """Sum the number of weights of each layer over the ranks. A collective: all ranks must call it."""
        if self.ranks is not ALONE:
            for layer, whole in zip(
                self.layers, total(self.ranks, (layer.local_nnz for layer in self.layers)), strict=True
            ):
                layer.set_total_nnz(whole)

    def remove(self) -> None:
        """Detach from the model: plain parameters, with zeros at inactive positions."""
        for hook in self._hooks + self._loading:
            hook.remove()
        for layer in self.layers:
            release(layer.module)


def release(module: nn.Module) -> None:
    """Remove the masks from a module, whose weights are zero where they were off, and the hooks that belong to them."""
    for link in links_of(module):
        link.weight.refuse_replaced(link.layer)
        link.weight.zero_inactive()
    unlink(module)
    for parameter in masks_of(module):
        remove_buffer(module, mask_name(parameter))
    remove_load_hook(module, _unpack_checkpoint)


def _unpack_checkpoint(module: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    """Before loading: turn the values and positions of a packed checkpoint into a dense weight and a mask."""
    for link in links_of(module):
        if link.before_load is not None:
            link.before_load()
    for name, mask in masks_of(module).items():
        weight, parameter, error_messages = prefix + name, parameters_of(module)[name], args[-1]
        assert parameter is not None
        own = {weight: parameter.detach(), mask_name(weight): mask}
        refuse_impossible(state, weight, parameter.shape, own, error_messages)
    for name, parameter in parameters_of(module).items():
        weight = prefix + name
        if parameter is None or weight not in packed_in(state):
            continue
        if is_sharded(parameter):
            raise ValueError(
                f"{weight} is packed in this checkpoint and sharded here: load it into a masked model in one "
                "process, and save that with rewire.distributed.save"
            )
        positions = state.pop(positions_name(weight))
        state[weight] = written_out(state[weight], positions, parameter.shape)
        state[mask_name(weight)] = mask_of(positions, parameter.shape)


def _convert_loaded_state(optimizers: Optimizers, layer: MaskedLayer) -> None:
    """Optimizer state from a packed checkpoint has one entry per non-zero: scatter it into dense tensors."""
    if is_sharded(layer.parameter):
        return  # packed checkpoints are refused for sharded models
    for optimizer in optimizers.all:
        for key in packed_entries(optimizer, layer.parameter, layer.nnz):
            value = optimizer.state[layer.parameter][key]
            dense = torch.zeros_like(layer.parameter, dtype=value.dtype)
            put(dense, layer.active(), value)
            optimizer.state[layer.parameter][key] = dense
