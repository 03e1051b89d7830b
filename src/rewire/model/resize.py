"""Give a model the sizes of another one of the same kind: a shrunk network is loaded into a freshly built one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rewire._torch import CHANNEL_NORM, CONVOLUTION, buffers_of, parameters_of

_REMEMBERED = {
    nn.Linear: ("in_features", "out_features"),
    CONVOLUTION: ("in_channels", "out_channels", "groups"),
    CHANNEL_NORM: ("num_features",),
    nn.PReLU: ("num_parameters",),
}


def sizes(model: nn.Module) -> dict[str, dict[str, int]]:
    """What modules remember about their sizes, by name.

    >>> sizes(nn.Sequential(nn.Linear(2, 3)))
    {'0': {'in_features': 2, 'out_features': 3}}
    """
    return {
        name: {key: int(getattr(module, key)) for key in keys}
        for name, module in model.named_modules()
        for kind, keys in _REMEMBERED.items()
        if isinstance(module, kind)
    }


def resize(model: nn.Module, state: Mapping[str, Tensor], asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Make parameters and buffers of the shapes in ``state``, and biases that only ``state`` has.

    Everything is looked at before anything is changed: names and numbers come from a file.
    """
    known = sizes(model)
    for name, values in asked.items():
        if name not in known or set(values) != set(known[name]) or not all(type(v) is int for v in values.values()):
            raise ValueError(f"it describes {name!r} as {values}, which this model does not have")
    modules = dict(model.named_modules())
    for name, old in model.state_dict().items():
        path = name.rpartition(".")[0]
        is_kernel = isinstance(modules.get(path), CONVOLUTION)  # shrinking removes channels, never taps
        if name in state and (state[name].dim() != old.dim() or (is_kernel and state[name].shape[2:] != old.shape[2:])):
            raise ValueError(f"its {name} has shape {tuple(state[name].shape)}, the model's {tuple(old.shape)}")
    for name, tensor in state.items():
        path, _, attribute = name.rpartition(".")
        module = modules.get(path)
        if module is None:
            continue  # load_state_dict names it
        is_parameter = attribute in parameters_of(module)
        tensors: dict[str, Any] = parameters_of(module) if is_parameter else buffers_of(module)
        old = tensors.get(attribute)
        if attribute in tensors and (old is None or old.shape != tensor.shape):
            template = old if old is not None else next(iter(module.parameters()))
            new = template.detach().new_zeros(tensor.shape)
            tensors[attribute] = nn.Parameter(new, template.requires_grad) if is_parameter else new
    for name, values in asked.items():
        for key, value in values.items():
            setattr(modules[name], key, value)
