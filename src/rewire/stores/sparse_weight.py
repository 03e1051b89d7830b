"""One sparse weight of a module, masked or packed, without optimizer or Rewirer: what copies of a model consist of."""

import weakref

import torch
from torch import Tensor, nn

from rewire._torch import buffers_of, parameters_of
from rewire.core.dense_ops import INTEGERS, put, take, where_true
from rewire.core.state_names import MASK_SUFFIX
from rewire.core.topology import Edit
from rewire.distributed.dtensor import local
from rewire.nn.intruders import PARAMETRIZATION, PRUNE, put_on_after_sparsify
from rewire.nn.packed import Packed, resize
from rewire.stores.rearrange import Rearrangement


class SparseWeight:
    """A parameter of a module with its mask or its positions. The module is only weakly referenced."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self.name = weakref.ref(module), name

    @property
    def exists(self) -> bool:
        """Whether the module is still there, and its weight still sparse."""
        module = self._module()
        if module is None or parameters_of(module).get(self.name) is None:
            return False
        return isinstance(module, Packed) or self.name + MASK_SUFFIX in buffers_of(module)

    def refuse_replaced(self, layer: str) -> None:
        """Raise if pruning or a parametrization of torch has taken over the parameter or the mask."""
        parameters, mask = parameters_of(self.module), buffers_of(self.module).get(self.name + MASK_SUFFIX)
        if self.name + "_orig" in parameters or (mask is not None and mask.dtype != torch.bool):
            intruder = PRUNE
        elif self.name not in parameters:
            intruder = PARAMETRIZATION
        else:
            return
        raise RuntimeError(
            put_on_after_sparsify(intruder, self.name, layer)
            + ", and has taken over the parameter that is trained sparsely: put it on before sparsify, or remove it"
        )

    @property
    def module(self) -> nn.Module:
        """The module that owns the weight."""
        module = self._module()
        assert module is not None
        return module

    @property
    def parameter(self) -> nn.Parameter:
        """The dense weight, or its non-zeros."""
        parameter = parameters_of(self.module)[self.name]
        assert parameter is not None
        return parameter

    @property
    def has_own_parameter(self) -> bool:
        """Whether the module has a parameter, and not a tensor that ``torch.func`` has put in its place."""
        return isinstance(parameters_of(self.module)[self.name], nn.Parameter)

    @property
    def mask(self) -> Tensor | None:
        """The mask of a masked weight, on this rank; ``None`` if the weight is packed."""
        mask = buffers_of(self.module).get(self.name + MASK_SUFFIX)
        return None if mask is None else local(mask)

    @property
    def topology(self) -> Tensor:
        """The buffer with the topology: the mask or the positions."""
        mask, module = self.mask, self.module
        if mask is not None:
            return mask
        assert isinstance(module, Packed)
        return module.weight_positions

    def positions(self) -> Tensor:
        """The flat positions of the weights that exist, in the local shard."""
        return self.topology.long() if self.mask is None else where_true(self.topology)

    def has_topology_of(self, other: "SparseWeight") -> bool:
        """Whether both have the same positions."""
        mine, theirs = self.positions(), other.positions()
        return mine.shape == theirs.shape and torch.equal(mine, theirs.to(mine.device))

    def content(self) -> tuple[torch.dtype, int]:
        """The dtype of the weight and the sum of its bits: another number when something is written to it.

        A version counter would be free, but does not count what is written through ``.data``.
        """
        values = local(self.parameter).detach().contiguous()
        return values.dtype, int(values.view(INTEGERS[values.element_size()]).sum(dtype=torch.int64))

    @torch.no_grad()
    def apply(self, edit: Edit) -> None:
        """Move to another topology: dropped positions go, grown ones begin with the value of the newborn weight."""
        mask, weight = self.mask, self.parameter
        if mask is not None:
            values = local(weight).detach()
            drop, grow = edit.drop.to(values.device), edit.grow.to(values.device)
            put(mask, drop, False)
            put(mask, grow, True)
            put(values, drop, 0.0)
            put(values, grow, edit.value)
            return
        before = self.positions()
        move = Rearrangement(before, edit)
        resize(weight, move(weight.detach(), edit.value))
        self.module.weight_positions = move(before, edit.grow).to(self.topology.dtype)

    def take_topology_of(self, other: "SparseWeight") -> None:
        """Move to the topology of another weight; positions that are new here take the values that they have there."""
        mine, theirs = self.positions(), other.positions().to(self.parameter.device)
        new = theirs[~torch.isin(theirs, mine)]
        source = local(other.parameter).detach()
        slots = new if other.mask is not None else torch.searchsorted(other.positions(), new.to(source.device))
        self.apply(Edit(mine[~torch.isin(mine, theirs)], new, take(source, slots.to(source.device))))

    @torch.no_grad()
    def zero_inactive(self) -> None:
        """Zero what was written where no weight exists. On the CPU nothing is written unless something is there.

        Written through ``.data``: a backward pass that needs the weight must not be told that it has changed.
        """
        mask = self.mask
        if mask is not None:
            values = local(self.parameter).data
            if values.device.type != "cpu" or bool(values.masked_fill(mask, 0.0).ne(0).any()):
                values.masked_fill_(~mask, 0.0)

    @torch.no_grad()
    def zero_inactive_grad(self) -> None:
        """Zero the gradient where no weight exists."""
        mask, parameter = self.mask, self.parameter
        if mask is not None and parameter.grad is not None:
            parameter.grad = torch.where(mask, parameter.grad, torch.zeros_like(parameter.grad))
