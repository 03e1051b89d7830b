"""Carry a plan out: slice parameters and masks, move constants into biases, set the sizes that modules remember."""

import torch
from torch import Tensor, nn

from rewire.model.state_names import mask_name
from rewire.shrinking.graph import Wiring
from rewire.shrinking.layers import by_output
from rewire.shrinking.plan import Plan


@torch.no_grad()
def cut(model: nn.Module, plan: Plan) -> None:
    """In place, on a model in float64."""
    for wiring in plan.wirings:
        _silence_stand_ins(model, wiring, plan)
        _carry_constants(model, wiring, plan)
    for (name, dim), index in plan.kept.items():
        _slice(model, name, dim, index)
    for wiring in plan.wirings:
        _set_groups(model, wiring, plan)
    for module in model.modules():
        _set_sizes(module)


def _carry_constants(model: nn.Module, wiring: Wiring, plan: Plan) -> None:
    """Add what removed constant inputs contribute to the bias, which is made where there is none."""
    gone = ~plan.stays(wiring.inputs.channels) & ~wiring.inputs.live & (wiring.inputs.constant != 0)
    if wiring.groups > 1 or not bool(gone.any()):
        return  # a grouped layer loses the outputs of an input that goes
    weight = by_output(_get(model, wiring.weight), 1, wiring.transposed)
    carried = weight[:, gone].sum(2) @ wiring.inputs.constant[gone]
    if not bool(carried[plan.stays(wiring.outputs.channels)].any()):
        return
    if wiring.bias is not None:
        _get(model, wiring.bias).add_(carried)
    else:
        stays = plan.stays(wiring.outputs.channels)
        owner = model.get_submodule(wiring.weight.rpartition(".")[0])
        owner.bias = nn.Parameter(carried[stays], requires_grad=_get(model, wiring.weight).requires_grad)


def _silence_stand_ins(model: nn.Module, wiring: Wiring, plan: Plan) -> None:
    """A stand-in that still depends on inputs loses them: nobody reads it."""
    rows = plan.stand_ins[wiring.outputs.channels] & wiring.outputs.live
    for name in (wiring.weight, mask_name(wiring.weight)):
        if bool(rows.any()) and (tensor := _find(model, name)) is not None:
            flat = by_output(tensor, wiring.groups, wiring.transposed).clone()
            flat[rows] = 0
            tensor.copy_(_from_output(flat, tensor, wiring))


def _from_output(flat: Tensor, like: Tensor, wiring: Wiring) -> Tensor:
    """Undo ``by_output``."""
    if not wiring.transposed:
        return flat.view(like.shape)
    split = flat.view(wiring.groups, like.shape[1], like.shape[0] // wiring.groups, -1)
    return split.transpose(1, 2).reshape(like.shape)


def _slice(model: nn.Module, name: str, dim: int, index: Tensor) -> None:
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    for one in (attribute, mask_name(attribute)):
        if (tensor := owner._parameters.get(one)) is not None:
            owner._parameters[one] = nn.Parameter(tensor.index_select(dim, index).contiguous(), tensor.requires_grad)
        elif (buffer := owner._buffers.get(one)) is not None:
            owner._buffers[one] = buffer.index_select(dim, index).contiguous()


def _set_groups(model: nn.Module, wiring: Wiring, plan: Plan) -> None:
    owner = model.get_submodule(wiring.weight.rpartition(".")[0])
    if wiring.groups > 1 and isinstance(owner, nn.modules.conv._ConvNd):
        per_group = wiring.outputs.channels.view(wiring.groups, -1)[:, 0]
        owner.groups = int(plan.stays(per_group).sum())


def groups_left(model: nn.Module, wiring: Wiring) -> int:
    """How many groups the layer has now."""
    return int(getattr(model.get_submodule(wiring.weight.rpartition(".")[0]), "groups", 1))


def _set_sizes(module: nn.Module) -> None:
    """The sizes that a module tells about itself follow its parameters."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvNd):
        first, second = module.weight.shape[0], module.weight.shape[1] * module.groups
        module.in_channels, module.out_channels = (first, second) if module.transposed else (second, first)
    elif isinstance(module, nn.modules.batchnorm._NormBase) and (kept := _any(module)) is not None:
        module.num_features = len(kept)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _any(module: nn.Module) -> Tensor | None:
    held = (module._parameters.get("weight"), module._buffers.get("running_mean"))
    return next((one for one in held if one is not None), None)


def _get(model: nn.Module, name: str) -> Tensor:
    found = _find(model, name)
    assert found is not None, name
    return found


def _find(model: nn.Module, name: str) -> Tensor | None:
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    return owner._parameters.get(attribute, owner._buffers.get(attribute))
