"""Copies of a sparse model: what makes them copies, what they must keep, and which of them follow the rewirings.

Every sparse weight has a ``Link``, a plain attribute of its module. When the module is deep-copied or pickled the link
notices, so that the copy knows that it is one. The model that a ``Rewirer`` trains pays nothing for this.

- An *average* follows: each edit of the original is applied to it too, so that both always have the same positions.
- Any other *copy* keeps the topology that it was made with, also when an optimizer of its own trains it. Writing values
  of the original into it is right until the original is rewired; after that the next forward pass raises.
"""

import copy
import itertools
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rewire._torch import (
    forward_pre_hooks,
    is_exporting,
    load_post_hooks,
    parameters_of,
    remove_load_hook,
    state_dict_pre_hooks,
)
from rewire.core.topology import Edit
from rewire.model.loaded_topology import explain_missing_topology
from rewire.stores.averaged_model import UpdateOfValues, averaged_model_under_construction
from rewire.stores.sparse_weight import SparseWeight

LINKS = "_rewire_links"  # the attribute of a module: its links, by the name of the weight
HOOK = "rewire"  # the key of our hooks in the dictionaries of a module
_TOPOLOGIES = itertools.count()


class Role(Enum):
    """What a sparse weight is to the one that it was copied from."""

    ORIGINAL = "original"  # trained under a Rewirer
    AVERAGE = "average"  # follows the edits of its original
    COPY = "copy"  # keeps its own topology


class EditedTogether(Protocol):
    """Something outside of any module that takes part in the edits of a weight."""

    def fits(self, weight: SparseWeight) -> bool:
        """Whether it has the topology of the weight, as far as it tells."""

    def edit(self, weight: SparseWeight, edit: Edit) -> None:
        """Take part in an edit of the weight, which still has its old topology."""


class Link:
    """One sparse weight of a module, the weight that it was copied from, and the copies that were made of it."""

    def __init__(self, module: nn.Module, name: str, layer: str) -> None:
        """``name``: of the parameter in its module; ``layer``: of the layer in the model, for messages."""
        self.weight, self.layer = SparseWeight(module, name), layer
        self.role = Role.ORIGINAL
        self.topology = next(_TOPOLOGIES)  # links with the same number have the same positions
        self.original: Link | None = None
        self.copies: weakref.WeakSet[Link] = weakref.WeakSet()
        self.tensor_averages: list[EditedTogether] = []
        self.before_load: Callable[[], None] | None = None
        self.on_load: Callable[[], None] | None = None
        self._has_trained = False  # whether gradients have arrived: an average gets none
        self._cleared: weakref.ref[Tensor] | None = None  # the parameter whose gradients are cleared as they arrive
        self._content: tuple[torch.dtype, int] | None = None  # of a copy, when its original got another topology

    def agrees_with(self, other: "Link") -> bool:
        """Whether both have the same topology."""
        if self.topology != other.topology and self.weight.has_topology_of(other.weight):
            self.topology = other.topology
        return self.topology == other.topology

    # Copying and pickling.

    def __deepcopy__(self, memo: dict[int, Any]) -> "Link | None":
        copied = memo.get(id(self.weight.module)) if self.weight.exists else None
        if copied is None:  # not copied together with its module
            return None
        link = Link(copied, self.weight.name, self.layer)
        link.role, link.topology, link.original = Role.COPY, self.topology, self
        self.copies.add(link)
        averaged = averaged_model_under_construction()
        if averaged is not None:
            link.role = Role.AVERAGE
            if "update_parameters" not in vars(averaged):
                averaged.update_parameters = UpdateOfValues(averaged)  # type: ignore[method-assign]
        # The copy has no attributes yet. What is in the memo now will be its dictionary of hooks, and its parameter.
        copy.deepcopy(forward_pre_hooks(self.weight.module), memo)[HOOK] = before_forward
        parameter = copy.deepcopy(self.weight.parameter, memo)
        if parameter is not self.weight.parameter:  # as in a copy for tracing
            link._clear_gradients_of(parameter)
        return link

    def __getstate__(self) -> dict[str, Any]:
        module = self.weight.module
        state = {"module": module, "name": self.weight.name, "layer": self.layer}
        if self.weight.mask is None:  # a packed weight needs no guard
            return state
        return state | {"hooks": forward_pre_hooks(module), "parameter": self.weight.parameter}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"], state["name"], state["layer"])  # type: ignore[misc]
        self.role = Role.COPY
        if "hooks" in state:
            state["hooks"][HOOK] = before_forward
            self._clear_gradients_of(state["parameter"])

    # What happens to the original.

    def averages(self) -> "list[Link]":
        """The copies that follow."""
        return [link for link in self.copies if link.role is Role.AVERAGE and link.weight.exists]

    def refuse_strayed_averages(self) -> None:
        """Before an edit: raise if an average no longer has the topology of its original."""
        for average in self.averages():
            average.restore_topology()
            average.refuse_strayed_averages()
        if not all(average.agrees_with(self) for average in self.averages()) or not all(
            average.fits(self.weight) for average in self.tensor_averages
        ):
            raise RuntimeError(
                f"the average of {self.layer} does not have the topology of the model any more: load the state_dicts "
                "of both from one checkpoint, and leave its masks and positions alone"
            )

    def edit_copies(self, edit: Edit) -> None:
        """Just before an edit: averages take part in it, all other copies remember what they hold now."""
        for average in self.tensor_averages:
            average.edit(self.weight, edit)
        before, self.topology = self.topology, next(_TOPOLOGIES)
        for link in list(self.copies):
            if not link.weight.exists:
                continue
            if link.role is Role.AVERAGE:
                link.edit_copies(edit)
                link.weight.apply(edit)
                link.topology = self.topology
            elif link._content is None and link.topology == before:
                link._content = link.weight.content()

    def loaded(self) -> None:
        """A state_dict was loaded into the module: values and topology together, so nothing is mixed."""
        if self.on_load is not None:
            self.on_load()
        self.topology = next(_TOPOLOGIES)
        if self._can_go_stale():
            assert self.original is not None
            self._content = None if self.agrees_with(self.original) else self.weight.content()
        for link in list(self.copies):
            if not link.weight.exists or link.agrees_with(self):
                continue
            if link.role is Role.AVERAGE:  # its own state_dict may be loaded next
                link.weight.take_topology_of(self.weight)
                link.loaded()
            elif link._content is None:
                link._content = link.weight.content()

    # What happens to a copy.

    def follow(self, original: "Link") -> None:
        """Become an average of a weight with the same topology."""
        self.role, self.original, self._content = Role.AVERAGE, original, None
        original.copies.add(self)
        forward_pre_hooks(self.weight.module)[HOOK] = before_forward

    def _can_go_stale(self) -> bool:
        return self.original is not None and self.original.weight.exists

    @property
    def is_settled(self) -> bool:
        """Whether nothing that happens to its original concerns this copy any more."""
        return self._has_trained or not self._can_go_stale()

    def refuse_mixture(self) -> None:
        """Raise if values were written into a copy after its original was rewired."""
        if self.role is not Role.COPY or self.is_settled or self._content is None:
            return
        now = self.weight.content()
        if now[0] != self._content[0]:
            self._content = now  # converted to another dtype, which is no mixture
        if now != self._content:
            raise RuntimeError(
                f"{self.layer} of this copy was written to after the model that it was copied from was rewired: its "
                "values now belong to different positions. If the copy is an average, add the line "
                "rewirer.register_average(copy) after copying, and it follows all rewirings. If it should equal the "
                "model, use copy.load_state_dict(model.state_dict())"
            )

    @torch.no_grad()
    def restore_topology(self) -> None:
        """Undo what averaging all buffers has done to the topology of an average."""
        if self.role is not Role.AVERAGE or self.original is None or not self.original.weight.exists:
            return
        mine, theirs = self.weight.topology, self.original.weight.topology
        if self.topology != self.original.topology or mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return  # loaded on its own, or stored in another way
        if mine.device.type != "cpu" or not torch.equal(mine, theirs.to(mine.device)):
            mine.copy_(theirs)

    def clear_gradients(self) -> None:
        """Leave no gradient where no weight exists: an optimizer of the copy then has nothing to move there."""
        if not self._shares_the_parameter():
            self._clear_gradients_of(self.weight.parameter)

    def _clear_gradients_of(self, parameter: nn.Parameter) -> None:
        """Not left to the forward pass of its module: attention, for one, reads weights of modules it never calls."""
        if not parameter.requires_grad or not parameter.is_leaf:
            return
        if self._cleared is None or self._cleared() is not parameter:
            self._cleared = weakref.ref(parameter)
            parameter.register_post_accumulate_grad_hook(self._gradient_arrived)

    def _shares_the_parameter(self) -> bool:
        """Whether the copy was made with the original's own tensors, for tracing: its gradients are not its own."""
        return self._can_go_stale() and self.original.weight.parameter is self.weight.parameter  # type: ignore[union-attr]

    def _gradient_arrived(self, parameter: Tensor) -> None:
        if self.weight.exists and self.weight.parameter is parameter:
            self._has_trained = True
            self.weight.zero_inactive_grad()


def add_link(module: nn.Module, parameter: nn.Parameter, layer: str) -> Link:
    """Link a sparse weight of a module, which has its mask or its positions by now."""
    name = next(name for name, candidate in parameters_of(module).items() if candidate is parameter)
    links: dict[str, Link] = module.__dict__.setdefault(LINKS, {})
    links[name] = Link(module, name, layer)
    state_dict_pre_hooks(module)[HOOK] = before_saving
    load_post_hooks(module)[HOOK] = after_loading
    remove_load_hook(module, before_loading)  # of another weight of the module
    module.register_load_state_dict_pre_hook(before_loading)
    return links[name]


def links_of(module: nn.Module) -> list[Link]:
    """The links of a module's own sparse weights."""
    links: dict[str, Link | None] = module.__dict__.get(LINKS, {})
    return [link for link in links.values() if link is not None]


def unlink(module: nn.Module) -> None:
    """Remove the links of a module and their hooks."""
    module.__dict__.pop(LINKS, None)
    for hooks in (forward_pre_hooks(module), state_dict_pre_hooks(module), load_post_hooks(module)):
        hooks.pop(HOOK, None)
    remove_load_hook(module, before_loading)


def unlinked(model: nn.Module) -> nn.Module:
    """The same model without links: a copy that will be converted into something else."""
    for module in model.modules():
        unlink(module)
    return model


def before_forward(module: nn.Module, _args: object) -> None:
    """The forward pre-hook of every copy; the original has none."""
    if not is_exporting():
        _before_forward(module)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _before_forward(module: nn.Module) -> None:
    links = links_of(module)
    for link in links:
        link.weight.refuse_replaced(link.layer)
        if not link.weight.has_own_parameter:
            continue  # torch.func calls the module with tensors of the caller, who may look at many at once
        link.refuse_mixture()
        link.restore_topology()
        link.weight.zero_inactive()
        if torch.is_grad_enabled():
            link.clear_gradients()
    if all(link.weight.mask is None and link.is_settled for link in links):  # a hook keeps layers from being fused
        forward_pre_hooks(module).pop(HOOK, None)


def before_saving(module: nn.Module, _prefix: str, _keep_vars: bool) -> None:
    """Before the ``state_dict`` of a copy: nothing is saved where no weight exists."""
    for link in links_of(module):
        if link.role is not Role.ORIGINAL:
            link.weight.zero_inactive()


def before_loading(module: nn.Module, _state: object, _prefix: str, metadata: dict[str, Any], *_: object) -> None:
    """Before anything is loaded into the module that a Rewirer trains: its parameters must stay the ones it knows."""
    originals = [link.layer for link in links_of(module) if link.role is Role.ORIGINAL]
    if originals and metadata.get("assign_to_params_buffers"):
        raise RuntimeError(
            f"load_state_dict(assign=True) would replace the weight of {originals[0]}, which its optimizer trains and "
            "its Rewirer rewires: load with assign=False, or load before sparsify"
        )


def after_loading(module: nn.Module, keys: Any) -> None:
    """After ``load_state_dict``, before it raises for missing keys."""
    explain_missing_topology(keys.missing_keys)
    for link in links_of(module):
        link.loaded()
