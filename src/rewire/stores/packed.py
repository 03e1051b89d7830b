"""The packed store: only the weights that exist, their gradients and their optimizer state; kernels that skip the rest.

Gradients at inactive positions are computed at rewiring steps alone, tile by tile from the inputs and output gradients
of that step, straight into the streaming top-k. With several micro-batches per step all of them are recorded until the
step, so that the gradient that is ranked is the one that the optimizer uses: the accumulated one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire._torch import call_after_accumulation, parameters_of
from rewire.core.dense_ops import take, written_out
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE, Ranks
from rewire.core.topology import Edit
from rewire.distributed.averaging import GradientAverager
from rewire.distributed.group import Group, Traffic
from rewire.model.select import SelectedWeight
from rewire.nn.coverage import no_kernel_reason, packable_weight
from rewire.nn.packed import unpack_module
from rewire.nn.replace import HWCN_MODULES, restore_torch_module, use_hwcn_module
from rewire.stores.copies import unlink
from rewire.stores.gradient_changes import share_scale
from rewire.stores.masked import MaskedStore
from rewire.stores.masked_layer import MaskedLayer
from rewire.stores.optimizer.optimizers import Optimizers, trained_by
from rewire.stores.optimizer.whole_weights import (
    refuse_matrix_optimizers,
    refuse_other_state,
    refuse_shared_state,
    warn_of_groups_by_dimension,
)
from rewire.stores.packed_edit import apply_edit, rearrange_state
from rewire.stores.packed_layer import PackedLayer


class PackedStore:
    """Packed layers where a kernel covers them and masked ones where none does."""

    name: ClassVar[str] = "packed"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal) - {Signal.MOMENTUM}
    reads: ClassVar[frozenset[str]] = frozenset({"masked", "packed"})
    spans_ranks: bool = False
    keeps_shapes: ClassVar[bool] = False

    @classmethod
    def refuse_optimizers(cls, optimizers: Optimizers, weights: Mapping[str, Tensor]) -> None:
        """Raise for optimizers of these weights that read a weight as a matrix, or all weights as one vector."""
        refuse_matrix_optimizers(optimizers, weights)

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

        ``keep_masked``: names of layers that are not packed even if a kernel covers them.
        """
        self.optimizers, self.ranks = optimizers, ranks
        uses = Counter(id(parameter) for module in model.modules() for parameter in parameters_of(module).values())
        reasons = [_not_packed_reason(weight, uses[id(weight.parameter)], keep_masked) for weight in weights]
        self.notes = {weight.spec.name: reason for weight, reason in zip(weights, reasons, strict=True) if reason}
        rest = [i for i, reason in enumerate(reasons) if reason]
        self._masked = MaskedStore(
            model, [weights[i] for i in rest], [active[i] for i in rest], [drawn[i] for i in rest], optimizers
        )
        self._packed = {
            i: _pack(weights[i], active[i], drawn[i], optimizers) for i, reason in enumerate(reasons) if not reason
        }
        masked = dict(zip(rest, self._masked.layers, strict=True))
        self.layers: list[PackedLayer | MaskedLayer] = [
            self._packed[i] if i in self._packed else masked[i] for i in range(len(weights))
        ]
        self._loading: list[RemovableHandle] = []
        self._loaded_optimizers: set[int] = set()  # their identities: state was loaded since the last step
        self._newborn: set[str] = set()  # layers whose loaded weights have no state yet
        self._watch_loading()
        self._keep = False
        self._averager: GradientAverager | None = None
        self._hooks: list[RemovableHandle] = []
        for layer in self._packed.values():
            self._hooks.append(call_after_accumulation(layer.parameter, layer.gradient.accumulated))
        self._hwcn_modules = [module for module in model.modules() if type(module) in HWCN_MODULES]
        for module in self._hwcn_modules:
            use_hwcn_module(module)

    @property
    def resized(self) -> list[nn.Parameter]:
        """The parameters that a rewiring resizes."""
        return [layer.parameter for layer in self._packed.values()]

    def average_over(self, copies: Group, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of packed weights over these ranks from now on, and rank the averages.

        ``parameters``: all of the model.
        """
        self.spans_ranks = True
        for layer in self._packed.values():
            layer.gradient.copies = copies
        self._averager = GradientAverager(copies, self.resized, self._averaged, parameters)

    def _averaged(self) -> None:
        for layer in self._packed.values():
            layer.gradient.note_gradient()

    @property
    def gradient_traffic(self) -> Traffic:
        """What this process sent to average the gradients of packed weights."""
        return Traffic() if self._averager is None else self._averager.group.traffic

    @property
    def keep_inactive_grads(self) -> bool:
        """Whether the next step ranks inactive gradients, so that inputs and output gradients are recorded."""
        return self._keep

    @keep_inactive_grads.setter
    def keep_inactive_grads(self, keep: bool) -> None:
        self._keep = self._masked.keep_inactive_grads = keep
        for layer in self._packed.values():
            if not keep or not layer.gradient.is_recording:
                layer.gradient.record(keep)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimizer: in most trainings there is no other."""
        return self.optimizers.all[0]

    def follow(self, optimizers: Optimizers) -> None:
        """Move the state of these optimizers from now on."""
        weights: dict[str, Tensor] = {layer.name: layer.parameter for layer in self._packed.values()}
        optimizers.refuse_untrained(weights)
        self.refuse_optimizers(optimizers, weights)
        warn_of_groups_by_dimension(optimizers, weights)
        self._masked.follow(optimizers)
        followed, self.optimizers = self.optimizers.all, optimizers
        self._watch_loading()
        self._loaded_optimizers |= {id(new) for new in optimizers.all if all(new is not old for old in followed)}

    def _watch_loading(self) -> None:
        for hook in self._loading:
            hook.remove()
        self._loading = [
            hook
            for optimizer in self.optimizers.all
            for hook in (
                optimizer.register_load_state_dict_post_hook(lambda loaded: self._loaded_optimizers.add(id(loaded))),
                optimizer.register_state_dict_pre_hook(lambda _saved: self._rearrange_state()),
            )
        ]

    def track_momentum(self, decay: float) -> None:
        """Never called: ``sparsify`` refuses methods that read momentum."""
        raise AssertionError("the packed store supplies no momentum")

    @torch.no_grad()
    def before_step(self) -> set[str]:
        """Fit the optimizers' state to weights that were loaded, or loaded state to the weights."""
        self._rearrange_state()
        for layer in self._packed.values():
            _convert_loaded_state(self.optimizers, layer)
            layer.state_positions = layer.module.weight_positions
        if self._loaded_optimizers:
            self._loaded_optimizers.clear()
            refuse_other_state(self.optimizers, self._packed.values())
        newborn, self._newborn = self._newborn, set()
        return newborn | self._masked.before_step()

    @torch.no_grad()
    def _rearrange_state(self) -> None:
        """If positions were loaded and the state of the layer's optimizer was not, rearrange that state.

        State that was loaded since the last step belongs to the new positions, whichever was loaded first.
        """
        old = [layer for layer in self._packed.values() if layer.state_is_old]
        if not old:
            return
        loaded = [
            trained_by(optimizer) for optimizer in self.optimizers.all if id(optimizer) in self._loaded_optimizers
        ]
        groups = self.optimizers.groups()
        for layer in old:
            parameter = id(layer.parameter)
            if any(parameter in ids for ids in loaded):
                continue
            if rearrange_state(layer, self.optimizers, groups.get(parameter, {})):
                self._newborn.add(layer.name)

    @torch.no_grad()
    def settle_gradients(self) -> None:
        """Raise for layers whose gradient is not that of the backward pass, up to a factor, which is applied."""
        for layer in self._packed.values():
            if layer.parameter.requires_grad:
                layer.gradient.settle(layer.name)
        for optimizer in self.optimizers.all:
            ours = trained_by(optimizer)
            share_scale([layer.gradient for layer in self._packed.values() if id(layer.parameter) in ours])

    def clear_inactive_grads(self) -> None:
        """Only masked layers have any."""
        self._masked.clear_inactive_grads()

    @torch.no_grad()
    def after_step(self, may_wait: bool) -> None:
        """Drop what was recorded for the ranking."""
        refuse_shared_state(self.optimizers, [layer.parameter for layer in self._packed.values()])
        for layer in self._packed.values():
            layer.gradient.record(self._keep)
        self._masked.after_step(may_wait)

    @torch.no_grad()
    def apply(self, edits: Sequence[Edit]) -> None:
        """Move every layer to its new topology; nothing moves if an average of any layer cannot follow."""
        for layer in self.layers:
            layer.link.refuse_strayed_averages()
        groups = self.optimizers.groups()
        for index, layer in self._packed.items():
            if len(edits[index].drop) or len(edits[index].grow):
                apply_edit(layer, edits[index], self.optimizers, groups.get(id(layer.parameter), {}))
                layer.gradient.record(layer.gradient.is_recording)
        self._masked.apply([edit for index, edit in enumerate(edits) if index not in self._packed])

    def refresh(self) -> None:
        """Packed layers are never sharded."""

    def recount(self) -> None:
        """Packed layers are never sharded."""

    @torch.no_grad()
    def remove(self) -> None:
        """Back to plain modules with zeros in place, optimizer state included."""
        self._rearrange_state()
        for hook in self._hooks + self._loading:
            hook.remove()
        if self._averager is not None:
            self._averager.remove()
        for layer in self._packed.values():
            layer.gradient.record(False)
            spread = partial(written_out, positions=layer.active(), shape=layer.shape)
            self.optimizers.change_state(layer.parameter, spread)
            unlink(layer.module)
            unpack_module(layer.module)
        for module in self._hwcn_modules:
            restore_torch_module(module)
        self._masked.remove()


def _not_packed_reason(weight: SelectedWeight, uses: int, keep_masked: Collection[str]) -> str:
    """Why a layer stays masked; an empty string if it is packed. ``uses``: the number of modules with this weight."""
    if weight.spec.name in keep_masked:
        return "kept masked"
    if weight.attribute != packable_weight(weight.module):
        return f"no kernel for {type(weight.module).__name__}.{weight.attribute}"
    return "shared by several modules" if uses > 1 else no_kernel_reason(weight.module, weight.parameter)


def _pack(weight: SelectedWeight, active: Tensor, drawn: Tensor | None, optimizers: Optimizers) -> PackedLayer:
    """Gather the values from the dense weight, unless they were drawn without one."""
    values = take(weight.parameter.detach(), active) if drawn is None else drawn.to(weight.parameter.dtype)
    optimizers.change_state(weight.parameter, lambda old: take(old, active))
    return PackedLayer(weight, active, values)


def _convert_loaded_state(optimizers: Optimizers, layer: PackedLayer) -> None:
    """Optimizer state from a masked checkpoint is dense: gather its entries at the active positions."""
    for optimizer in optimizers.all:
        state = optimizer.state.get(layer.parameter, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == layer.shape and layer.shape != layer.parameter.shape:
                state[key] = take(value, layer.active())
