"""Averages of a model's weights that users declare: copies of the model, or tensors for its parameters.

A declared average follows: every edit of the model is applied to it too. ``AveragedModel`` declares itself.
"""

from collections.abc import Iterator, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rewire.core.dense_ops import put
from rewire.core.state_names import MASK_SUFFIX, POSITIONS_SUFFIX
from rewire.core.topology import Edit
from rewire.model.select import unwrap
from rewire.stores.averaged_model import UpdateOfValues
from rewire.stores.copies import Link, Role, links_of
from rewire.stores.rearrange import Rearrangement
from rewire.stores.sparse_weight import SparseWeight

INSIDE = ("module", "ema_model", "ema", "model", "shadow_params")  # where libraries keep what they average into


class TensorAverage:
    """An average of one sparse weight as an entry of a dictionary or list of tensors."""

    def __init__(self, container: Any, key: Any, topology: str | None = None) -> None:
        """``topology``: the key of the mask or the positions, if the container has them."""
        self._container, self._key, self._topology = container, key, topology

    def fits(self, weight: SparseWeight) -> bool:
        """Whether the average has one entry for each weight of the model, at the same positions as far as it tells."""
        same_shape = self._container[self._key].shape == weight.parameter.shape
        if not same_shape or self._topology is None:
            return bool(same_shape)
        topology, mask = self._container[self._topology], weight.mask
        return torch.equal(topology, mask) if mask is not None else torch.equal(topology.long(), weight.positions())

    @torch.no_grad()
    def edit(self, weight: SparseWeight, edit: Edit) -> None:
        """Take part in an edit of the weight, which still has its old topology."""
        values = self._container[self._key]
        if weight.mask is not None:
            put(values, edit.drop, 0.0)
            put(values, edit.grow, edit.value)
            if self._topology is not None:
                put(self._container[self._topology], edit.drop, False)
                put(self._container[self._topology], edit.grow, True)
            return
        before = weight.positions()
        move = Rearrangement(before, edit)
        values.data = move(values.detach(), edit.value)  # the tensor stays the same object
        if self._topology is not None:
            positions = self._container[self._topology]
            positions.data = move(before, edit.grow).to(positions.dtype)


def register_average(model: nn.Module, links: Sequence[Link], average: object) -> None:
    """Let an average follow all edits of the model from now on. Nothing is changed unless all of it fits."""
    if isinstance(average, (MutableMapping, MutableSequence)):
        _register_tensors(model, links, average)
        return
    pairs = list(_pairs(model, links, average))
    for copied, link in pairs:
        if copied.role is Role.ORIGINAL:
            raise ValueError(
                "this is a model with a Rewirer of its own, not a copy: make the average with copy.deepcopy(model)"
            )
        if not copied.agrees_with(link):
            raise ValueError(
                f"{link.layer} of this copy has another topology than the model, so it cannot be its average: register "
                "it before the next rewiring, or bring it up to date with copy.load_state_dict(model.state_dict())"
            )
    for copied, link in pairs:
        copied.follow(link)
    if isinstance(average, AveragedModel) and "update_parameters" not in vars(average):
        average.update_parameters = UpdateOfValues(average)  # type: ignore[method-assign]


def _pairs(model: nn.Module, links: Sequence[Link], average: object) -> Iterator[tuple[Link, Link]]:
    """Each sparse weight of the copy with that of the model."""
    paths = {module: path for path, module in model.named_modules()}
    wanted = [(paths[link.weight.module], link) for link in links]
    root = _copy_inside(average, [path for path, _ in wanted])
    if root is None:
        raise TypeError(
            f"an average is a copy of the model, or a dictionary or list of tensors for its parameters, not {average!r}"
        )
    for path, link in wanted:
        copied = next(
            (other for other in links_of(root.get_submodule(path)) if other.weight.name == link.weight.name), None
        )
        if copied is None:
            raise ValueError(
                f"{link.layer} of this copy is not sparse: it was made before sparsify. Make the average after it"
            )
        yield copied, link


def _copy_inside(average: object, paths: Sequence[str], depth: int = 3) -> nn.Module | None:
    """The module with these submodules: the average itself, or what it wraps."""
    if isinstance(average, nn.Module):
        average = unwrap(average)
        names = {name for name, _ in average.named_modules()}
        if names.issuperset(paths) and (any(paths) or links_of(average)):
            return average
    inside = [getattr(average, name, None) for name in INSIDE] if depth else []
    modules = (_copy_inside(value, paths, depth - 1) for value in inside if value is not None)
    return next((module for module in modules if module is not None), None)


def _register_tensors(
    model: nn.Module, links: Sequence[Link], average: MutableMapping[str, Tensor] | MutableSequence[Tensor]
) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if isinstance(average, MutableMapping):
        keys: dict[int, Any] = {identity: name for identity, name in names.items() if name in average}
    else:
        trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
        order = next((identities for identities in (list(names), trained) if len(identities) == len(average)), None)
        if order is None:
            raise ValueError(
                "a list of tensors is taken for the parameters of the model in their order: it has "
                f"{len(average)}, and the model {len(names)} ({len(trained)} of them trained)"
            )
        keys = {identity: index for index, identity in enumerate(order)}
    pairs = []
    for link in links:
        key = keys.get(id(link.weight.parameter))
        topology = None
        if isinstance(key, str):
            topology = key + (POSITIONS_SUFFIX if link.weight.mask is None else MASK_SUFFIX)
        tensor_average = TensorAverage(average, key, topology if topology in average else None)
        if key is None or not tensor_average.fits(link.weight):
            raise ValueError(
                f"this average does not hold the weight of {link.layer} in its present shape and topology: make it "
                "after sparsify, from the model's parameters() or state_dict()"
            )
        pairs.append((link, tensor_average))
    for link, tensor_average in pairs:
        link.tensor_averages.append(tensor_average)
