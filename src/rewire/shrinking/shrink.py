"""``shrink``: a smaller model that computes the same, verified before it is returned."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from rewire._torch import buffers_of, parameters_of
from rewire.model.kinds import is_conv_or_linear
from rewire.model.state_names import mask_name, masks_in, masks_of
from rewire.shrinking.cut import cut, groups_left
from rewire.shrinking.graph import ShrinkError, TraceError
from rewire.shrinking.plan import Plan, plan
from rewire.shrinking.report import Shrinkage, report
from rewire.shrinking.verify import TOLERANCE, difference, in_float64, own_difference, refuse_without_float64
from rewire.stores.convert import copied, to_masked, to_packed
from rewire.stores.copies import unlinked

Topology = Mapping[str, Tensor] | Literal["nonzero"] | None


def shrink(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    topology: Topology = None,
    masks: bool = True,
    packed: bool = False,
) -> nn.Module:
    """A copy of the model without its empty neurons and unused inputs; in evaluation mode it computes the same.

    A neuron without inputs is a constant. It is followed through batch norm and activation and added to the biases of
    the layers that read it. ``example`` is an input, or a tuple of all arguments.

    Which weights exist is read from the model's masks. For a model without masks, ``topology`` tells: bool masks by
    layer name, or ``"nonzero"`` if exact zeros are missing weights. ``masks=False`` removes the masks from the
    result. With ``packed=True`` the layers of the result keep only the weights that exist, as the packed store does.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = nn.init.zeros_(model[0].weight[1:2].detach())
    >>> shrink(model, torch.zeros(1, 2), topology="nonzero")[0]
    Linear(in_features=2, out_features=2, bias=True)
    """
    small, summary = shrink_with_report(model, example, topology=topology, masks=masks, packed=packed)
    if remark := summary.remark():
        warnings.warn(remark, stacklevel=2)
    return small


def shrink_with_report(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    topology: Topology = None,
    masks: bool = True,
    packed: bool = False,
) -> tuple[nn.Module, Shrinkage]:
    """``shrink`` without warnings; also returns what was removed."""
    if packed and not masks:
        raise ValueError("masks=False returns a plain model, packed=True one with its topology: choose one of them")
    model = to_masked(model)
    arguments = example if isinstance(example, tuple) else (example,)
    exact = unlinked(copied(model)).cpu().double().eval()
    _set_masks(exact, topology)
    failure: Exception | None = None
    for keep_reshapes in (False, True):  # the second attempt removes nothing across a reshape
        try:
            small, first_plan, distance = _shrunk(exact, in_float64(arguments), keep_reshapes, packed)
        except TraceError:
            refuse_without_float64(model, exact, arguments)
            raise
        except (RuntimeError, ValueError, IndexError) as error:  # the model's code asks for the sizes it had
            failure = error
            continue
        if distance > TOLERANCE:
            raise ShrinkError(
                f"the shrunk {type(model).__name__} differs from the original by {distance:.1e} relative in float64 "
                f"(at most {TOLERANCE:g} is allowed): it is not returned. Its forward may depend on sizes or on state"
            )
        summary = report(exact, small, first_plan, distance)
        result = _restored(model, small, masks, packed)
        result = to_packed(result) if packed else result
        return result, replace(summary, own_difference=own_difference(model, result, arguments))
    refuse_without_float64(model, exact, arguments)
    raise ShrinkError(f"the shrunk {type(model).__name__} does not run: {failure}") from failure


def _shrunk(
    exact: nn.Module, example: tuple[Any, ...], keep_reshapes: bool, packed: bool
) -> tuple[nn.Module, Plan, float]:
    """A shrunk copy of a model in float64, its plan, and how far its outputs are from those of the original."""
    small, first_plan = _cut_to_a_fixed_point(exact, example, keep_reshapes)
    distance = difference(exact, small, example)
    if packed:
        distance = max(distance, difference(exact, to_packed(small), example))
    return small, first_plan, distance


def _cut_to_a_fixed_point(model: nn.Module, example: tuple[Any, ...], keep_reshapes: bool) -> tuple[nn.Module, Plan]:
    """One plan removes all that can be removed, unless it leaves a grouped layer with a single group.

    Such a layer is an ordinary one, of which single channels can be removed: another plan is made.
    """
    first_plan = current = plan(model, example, topology_masks(model), keep_reshapes)
    small = copy.deepcopy(model)
    cut(small, current)
    while any(use.groups > 1 and groups_left(small, use) == 1 for use in current.layers):
        current = plan(small, example, topology_masks(small), keep_reshapes)
        cut(small, current)
    return small, first_plan


def topology_masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of a model by the names of their weights."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    masks = masks_in(parameters | dict(model.named_buffers(remove_duplicate=False)))
    return {name: mask for name, mask in masks.items() if name in parameters}


def _set_masks(model: nn.Module, topology: Topology) -> None:
    """Register the masks of ``topology``, and refuse a weight with values outside of its mask: they would be lost."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for layer, mask in _masks_by_layer(model, topology).items():
        name = layer if layer in parameters else f"{layer}.weight" if layer else "weight"
        if name not in parameters or parameters[name].shape != mask.shape:
            shape = tuple(parameters[name].shape) if name in parameters else "no such weight"
            raise ValueError(f"topology[{layer!r}] is of shape {tuple(mask.shape)}, the model has {shape}")
        path, _, parameter = name.rpartition(".")
        model.get_submodule(path).register_buffer(mask_name(parameter), mask.cpu().bool())
    for name, mask in topology_masks(model).items():
        if bool((parameters[name].detach().ne(0) & ~mask.bool()).any()):
            raise ShrinkError(
                f"{name} has values where its mask says that there is no weight: it was trained without its Rewirer. "
                "Leave the masks away, or set those values to zero"
            )


def _masks_by_layer(model: nn.Module, topology: Topology) -> Mapping[str, Tensor]:
    """The masks that ``topology`` stands for; ``"nonzero"`` gives one to each layer that has none."""
    if topology is None:
        return {}
    if not isinstance(topology, str):
        return topology
    if topology != "nonzero":
        raise ValueError(f"topology must be masks by layer name or 'nonzero', not {topology!r}")
    known = topology_masks(model)
    weights = dict(model.named_parameters(remove_duplicate=False))
    paths = [path for path, module in model.named_modules() if is_conv_or_linear(module)]
    names = {path: f"{path}.weight" if path else "weight" for path in paths}
    return {path: weights[name].detach() != 0 for path, name in names.items() if name in weights and name not in known}


def _restored(model: nn.Module, small: nn.Module, masks: bool, packed: bool) -> nn.Module:
    """The shrunk model with the dtypes, devices and modes of the original, and with the masks that it should have."""
    modules = dict(model.named_modules())
    for path, module in small.named_modules():
        original = modules[path]
        module.training = original.training
        first = next((parameter for parameter in parameters_of(original).values() if parameter is not None), None)
        for tensors, before in (
            (parameters_of(module), parameters_of(original)),
            (buffers_of(module), buffers_of(original)),
        ):
            for name, tensor in tensors.items():
                template = before.get(name) if before.get(name) is not None else first  # a bias or a mask may be new
                if tensor is not None and template is not None:
                    dtype = template.dtype if tensor.is_floating_point() else tensor.dtype
                    tensor.data = tensor.data.to(template.device, dtype)
        for name in map(mask_name, masks_of(module)):
            if not packed and not (masks and name in buffers_of(original)):
                del buffers_of(module)[name]
    return small
