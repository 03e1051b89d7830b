"""The packed store: only the weights that exist, their gradients and their optimizer state; kernels that skip the rest.

Gradients at inactive positions are computed at rewiring steps alone, tile by tile from the inputs and output gradients
of that step, straight into the streaming top-k. With several micro-batches per step all of them are recorded until the
step, so that the gradient that is ranked is the one that the optimizer uses: the accumulated one.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rewire.core.dense_ops import take, written_out
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE, Ranks
from rewire.core.topology import Edit
from rewire.model.select import Found
from rewire.nn.coverage import no_kernel_reason
from rewire.nn.packed import unpack_module
from rewire.nn.replace import HWCN_MODULES, restore_torch_module, use_hwcn_module
from rewire.stores.copies import unlink
from rewire.stores.masked import MaskedStore
from rewire.stores.masked_layer import MaskedLayer
from rewire.stores.optimizer_state import has_only_elementwise_state, map_state, refuse_untrained, state_tensors
from rewire.stores.packed_layer import PackedLayer


class PackedStore:
    """Packed layers where a kernel covers them and masked ones where none does."""

    name: ClassVar[str] = "packed"
    supplies: ClassVar[frozenset[Signal]] = frozenset(Signal) - {Signal.MOMENTUM}
    reads: ClassVar[frozenset[str]] = frozenset({"masked", "packed"})
    spans_ranks: ClassVar[bool] = False
    keeps_shapes: ClassVar[bool] = False

    @classmethod
    def refuse_optimizer(cls, optimizer: torch.optim.Optimizer) -> None:
        """Raise for optimizers that read a weight as a matrix, or all weights as one vector."""
        if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.Muon)):
            raise ValueError(
                f"{type(optimizer).__name__} needs whole weights, and the packed store holds only the non-zeros: "
                "use store='masked'"
            )

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[Found],
        active: Sequence[Tensor],
        drawn: Sequence[Tensor | None],
        optimizer: torch.optim.Optimizer,
        ranks: Ranks = ALONE,
        keep_masked: Collection[str] = (),
    ) -> None:
        """``drawn``: initial values for the active weights of a layer, or ``None`` to keep those of the parameter.

        ``keep_masked``: names of layers that are not packed even if a kernel covers them.
        """
        self.optimizer, self.ranks = optimizer, ranks
        uses = [id(m._parameters.get("weight")) for m in model.modules()]
        reasons = [_not_packed_reason(one, uses.count(id(one.parameter)), keep_masked) for one in found]
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
        self._hwcn_modules = [module for module in model.modules() if type(module) in HWCN_MODULES]
        for module in self._hwcn_modules:
            use_hwcn_module(module)

    @property
    def keep_inactive_grads(self) -> bool:
        """Whether the next step ranks inactive gradients, so that inputs and output gradients are recorded."""
        return self._keep

    @keep_inactive_grads.setter
    def keep_inactive_grads(self, keep: bool) -> None:
        self._keep = self._masked.keep_inactive_grads = keep
        for layer in self._packed.values():
            if not keep or layer.module.backward_record is None:
                layer.record(keep)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of this optimizer from now on."""
        refuse_untrained(optimizer, {layer.name: layer.parameter for layer in self._packed.values()})
        self._masked.follow(optimizer)
        self.optimizer = optimizer

    def track_momentum(self, decay: float) -> None:
        """Never called: ``sparsify`` refuses methods that read momentum."""
        raise AssertionError("the packed store supplies no momentum")

    @torch.no_grad()
    def before_step(self) -> None:
        """Fit loaded optimizer state to the weights; nothing inactive has to be cleared in a packed layer."""
        for layer in self._packed.values():
            _convert_loaded_state(self.optimizer, layer)
        self._masked.before_step()

    def clear_inactive_grads(self) -> None:
        """Only masked layers have any."""
        self._masked.clear_inactive_grads()

    @torch.no_grad()
    def after_step(self, may_wait: bool) -> None:
        """Drop what was recorded for the ranking."""
        if self._packed and not has_only_elementwise_state(self.optimizer):
            raise ValueError(
                f"{type(self.optimizer).__name__} keeps state that has no entry for each weight, so the packed store "
                "cannot move it with the weights: use store='masked'"
            )
        for layer in self._packed.values():
            layer.record(self._keep)
        self._masked.after_step(may_wait)

    @torch.no_grad()
    def apply(self, edits: Sequence[Edit]) -> None:
        """Move every layer to its new topology."""
        for layer in self._packed.values():
            layer.link.refuse_strayed_averages()
        for index, layer in self._packed.items():
            if len(edits[index].drop) or len(edits[index].grow):
                layer.apply(edits[index], self.optimizer)
        self._masked.apply([edit for index, edit in enumerate(edits) if index not in self._packed])

    def refresh(self) -> None:
        """Packed layers are never sharded."""

    def recount(self) -> None:
        """Packed layers are never sharded."""

    @torch.no_grad()
    def remove(self) -> None:
        """Back to plain modules with zeros in place, optimizer state included."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._packed.values():
            layer.record(False)
            spread = partial(written_out, positions=layer.active(), shape=layer.shape)
            map_state(self.optimizer, layer.parameter, spread)
            unlink(layer.module)
            unpack_module(layer.module)
        for module in self._hwcn_modules:
            restore_torch_module(module)
        self._masked.remove()


def _not_packed_reason(found: Found, uses: int, keep_masked: Collection[str]) -> str:
    """Why a layer stays masked; an empty string if it is packed. ``uses``: the number of modules with this weight."""
    if found.spec.name in keep_masked:
        return "kept masked"
    return "shared by several modules" if uses > 1 else no_kernel_reason(found.module, found.parameter)


def _pack(found: Found, active: Tensor, drawn: Tensor | None, optimizer: torch.optim.Optimizer) -> PackedLayer:
    """Gather the values from the dense weight, unless they were drawn without one."""
    values = take(found.parameter.detach(), active) if drawn is None else drawn.to(found.parameter.dtype)
    map_state(optimizer, found.parameter, lambda old: take(old, active))
    return PackedLayer(found, active, values)


def _convert_loaded_state(optimizer: torch.optim.Optimizer, layer: PackedLayer) -> None:
    """Optimizer state from a masked checkpoint is dense: gather its entries at the active positions."""
    for key, value in optimizer.state.get(layer.parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == layer.shape and layer.shape != layer.parameter.shape:
            optimizer.state[layer.parameter][key] = take(value, layer.active())
    assert all(len(state) == layer.nnz for state in state_tensors(optimizer, layer.parameter))
