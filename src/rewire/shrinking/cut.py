"""Carry out a plan: slice parameters and masks, add constants to biases, update the sizes that modules remember."""

import torch
from torch import Tensor, nn

from rewire._torch import CHANNEL_NORM, CONVOLUTION, buffers_of, parameters_of
from rewire.model.state_names import mask_name
from rewire.shrinking.graph import LayerUse
from rewire.shrinking.layers import by_output
from rewire.shrinking.plan import Plan


@torch.no_grad()
def cut(model: nn.Module, plan: Plan) -> None:
    """Remove the channels of a plan from a model in float64, in place."""
    for use in plan.layers:
        _disconnect_dummies(model, use, plan)
        _fold_constants(model, use, plan)
    for (name, dim), index in plan.indices.items():
        _slice(model, name, dim, index)
    for use in plan.layers:
        _set_groups(model, use, plan)
    for module in model.modules():
        _set_sizes(module)


def _fold_constants(model: nn.Module, use: LayerUse, plan: Plan) -> None:
    """Add the contribution of removed constant inputs to the bias, which is created if the layer has none."""
    removed = ~plan.is_kept(use.inputs.channels) & ~use.inputs.live & (use.inputs.constant != 0)
    if use.groups > 1 or not bool(removed.any()):
        return  # where a grouped layer loses an input, it loses the outputs of that group as well
    weight = by_output(_get(model, use.weight), 1, use.transposed)
    contribution = weight[:, removed].sum(2) @ use.inputs.constant[removed]
    kept = plan.is_kept(use.outputs.channels)
    if not bool(contribution[kept].any()):
        return
    if use.bias is not None:
        _get(model, use.bias).add_(contribution)
    else:
        owner = model.get_submodule(use.weight.rpartition(".")[0])
        owner.bias = nn.Parameter(contribution[kept], requires_grad=_get(model, use.weight).requires_grad)


def _disconnect_dummies(model: nn.Module, use: LayerUse, plan: Plan) -> None:
    """Zero the weights of a dummy channel that still depends on inputs: nothing reads it."""
    rows = plan.dummies[use.outputs.channels] & use.outputs.live
    for name in (use.weight, mask_name(use.weight)):
        if bool(rows.any()) and (tensor := _find(model, name)) is not None:
            flat = by_output(tensor, use.groups, use.transposed).clone()
            flat[rows] = 0
            tensor.copy_(_from_output(flat, tensor, use))


def _from_output(flat: Tensor, like: Tensor, use: LayerUse) -> Tensor:
    """The inverse of ``by_output``."""
    if not use.transposed:
        return flat.view(like.shape)
    split = flat.view(use.groups, like.shape[1], like.shape[0] // use.groups, -1)
    return split.transpose(1, 2).reshape(like.shape)


def _slice(model: nn.Module, name: str, dim: int, index: Tensor) -> None:
    """Keep some indices of a parameter or buffer, and of the mask of a weight."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    tensor, mask = _get(model, name), buffers_of(owner).get(mask_name(attribute))
    data = tensor.index_select(dim, index).contiguous()
    if attribute in parameters_of(owner):
        parameters_of(owner)[attribute] = nn.Parameter(data, tensor.requires_grad)
    else:
        buffers_of(owner)[attribute] = data
    if mask is not None and mask.shape == tensor.shape:
        buffers_of(owner)[mask_name(attribute)] = mask.index_select(dim, index).contiguous()


def _set_groups(model: nn.Module, use: LayerUse, plan: Plan) -> None:
    owner = model.get_submodule(use.weight.rpartition(".")[0])
    if use.groups > 1 and isinstance(owner, CONVOLUTION):
        first_of_group = use.outputs.channels.view(use.groups, -1)[:, 0]
        owner.groups = int(plan.is_kept(first_of_group).sum())


def groups_left(model: nn.Module, use: LayerUse) -> int:
    """How many groups a layer has after the cut."""
    return int(getattr(model.get_submodule(use.weight.rpartition(".")[0]), "groups", 1))


def _set_sizes(module: nn.Module) -> None:
    """Update attributes such as ``in_features`` to the shapes of the parameters."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, CONVOLUTION):
        first, second = module.weight.shape[0], module.weight.shape[1] * module.groups
        module.in_channels, module.out_channels = (first, second) if module.transposed else (second, first)
    elif isinstance(module, CHANNEL_NORM) and (per_channel := _per_channel(module)) is not None:
        module.num_features = len(per_channel)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _per_channel(norm: nn.Module) -> Tensor | None:
    """A tensor with one element per channel, if the norm has any."""
    weight = parameters_of(norm).get("weight")
    return weight if weight is not None else buffers_of(norm).get("running_mean")


def _get(model: nn.Module, name: str) -> Tensor:
    tensor = _find(model, name)
    assert tensor is not None, name
    return tensor


def _find(model: nn.Module, name: str) -> Tensor | None:
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    return parameters_of(owner).get(attribute, buffers_of(owner).get(attribute))
