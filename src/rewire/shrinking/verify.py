"""Do two models compute the same? Compared on an example and on random inputs of its shape."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rewire.model.outputs import relative_difference
from rewire.shrinking.graph import ShrinkError

TOLERANCE = 1e-9  # relative, in float64


def in_float64(example: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments on the CPU, floating-point tensors as float64."""

    def convert(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu()
        return tensor.double() if tensor.is_floating_point() else tensor

    converted: tuple[Any, ...] = tree_map_only(Tensor, convert, example)
    return converted


@torch.no_grad()
def refuse_without_float64(model: nn.Module, exact: nn.Module, example: tuple[Any, ...]) -> None:
    """Raise if ``exact``, a copy of the model in float64, does not run: shrinking traces and compares in float64."""
    try:
        exact(*in_float64(example))
    except Exception as error:  # the model's own code may raise anything
        name, reason = type(model).__name__, _reason(error)
        if _run(copy.deepcopy(model).eval(), own_precision(model, example)) is None:
            raise ShrinkError(f"{name} does not run with this example: {reason}") from error
        raise ShrinkError(
            f"{name} does not run in float64, in which it is shrunk and compared: {reason}. Its code may fix a dtype "
            "or use an operation that has no float64 version"
        ) from error


@torch.no_grad()
def difference(model: nn.Module, small: nn.Module, example: tuple[Any, ...]) -> float:
    """The largest relative difference of the outputs, on the example and on random inputs."""
    return max(
        relative_difference(model(*arguments), small(*arguments)) for arguments in _inputs(example, scales=(1.0, 10.0))
    )


@torch.no_grad()
def own_difference(model: nn.Module, small: nn.Module, example: tuple[Any, ...]) -> float | None:
    """The same between the models as users run them: in their own precision and on their own device.

    ``None`` if the original does not run so (float16 on a CPU, for instance). Raises a ``ShrinkError`` if the small
    model does not run, has outputs of another type, or differs by more than rounding.
    """
    model, small = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    worst = 0.0
    for arguments in _inputs(own_precision(model, example), scales=(1.0,)):
        expected = _run(model, arguments)
        if expected is None:
            return None
        try:
            worst = max(worst, relative_difference(expected, small(*arguments)))
        except Exception as error:
            message = f"the shrunk {type(model).__name__} does not run in the original's precision: {_reason(error)}"
            raise ShrinkError(f"{message}. It is not returned") from error
    dtypes = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    allowed = max((torch.finfo(dtype).eps for dtype in dtypes), default=TOLERANCE) ** 0.5
    if worst > allowed:
        raise ShrinkError(
            f"the shrunk {type(model).__name__} differs from the original by {worst:.1e} relative in its own precision "
            f"(at most {allowed:.1e} is rounding): it is not returned"
        )
    return worst


def own_precision(model: nn.Module, example: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments on the device of the model, floating-point tensors in the dtype of its first parameter."""
    first = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    if first is None:
        return example
    device, dtype = first.device, first.dtype

    def convert(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    converted: tuple[Any, ...] = tree_map_only(Tensor, convert, example)
    return converted


def _inputs(example: tuple[Any, ...], scales: tuple[float, ...]) -> Iterator[tuple[Any, ...]]:
    yield example
    generator = torch.Generator().manual_seed(0)
    for scale in scales:
        yield tree_map_only(Tensor, partial(_random_like, scale, generator), example)


def _random_like(scale: float, generator: torch.Generator, x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    return (scale * torch.randn(x.shape, generator=generator, dtype=torch.float64)).to(x.device, x.dtype)


def _run(model: nn.Module, arguments: tuple[Any, ...]) -> Any:
    """The outputs, or ``None`` if the model does not run."""
    try:
        return model(*arguments)
    except Exception:  # the model's own code may raise anything
        return None


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
