"""What other code sees when it reads ``layer.weight`` of a packed layer: the dense weight, read-only.

Some models read a layer's weight instead of calling the layer: ``F.linear(x, layer.weight)``, a penalty
``layer.weight.pow(2).mean()``, or the fast path of ``nn.TransformerEncoderLayer`` in evaluation. They get what they
would get from a masked layer. docs/decisions/0008-reading-packed-weights.md has the reasons.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire._torch import handing_over_inner_calls, without_torch_function
from rewire.nn.coverage import call_arguments, is_call_of_layer
from rewire.nn.read_only import read_only
from rewire.nn.tensor_functions import METADATA, first_of, function_name, mapped, writes_to_first


class WeightOwner(Protocol):
    """What a packed layer offers to those who read its weight."""

    layer_name: str
    weight_positions: Tensor
    dense_shape: torch.Size
    dense_read_warned: bool

    @property
    def backward_record(self) -> object | None:
        """What is recorded for a rewiring, if this step ranks gradients."""

    @property
    def weight_values(self) -> nn.Parameter:
        """The non-zero weights."""

    def apply_weight(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """The output of the layer for the given values and bias."""

    def record_dense_gradient(self, grad: Tensor) -> None:
        """Keep the gradient of a dense weight that was read, for the next rewiring."""


class DenseWeight(Tensor):
    """The weight of a packed layer with its zeros, written out only when an operation needs them.

    Sizes and types are known without that, and ``F.linear`` or a convolution with the layer's own settings runs the
    sparse kernel. Every other function gets a plain dense tensor whose gradient flows to the non-zero values.
    Functions that would change it raise: their effect would be lost.
    """

    owner: WeightOwner
    kind: str
    rows: slice | None  # outputs of the layer, if this is not the whole weight
    gradient: tuple[Tensor, Tensor] | None  # of kind ``"grad"``: values and positions when it was read

    @staticmethod
    def of(owner: WeightOwner, kind: str = "weight", rows: slice | None = None) -> "DenseWeight":
        """``kind``: the ``"weight"`` of a layer, its ``"data"`` (without gradient), or its ``"grad"``.

        ``rows``: some of the outputs alone.
        """
        values, shape = owner.weight_values, owner.dense_shape
        if rows is not None:
            shape = torch.Size([rows.stop - rows.start, *shape[1:]])
        # One element stands for all: it has the shape and takes no memory. NaN, so that no mistake goes unnoticed.
        placeholder = torch.full((), torch.nan, dtype=values.dtype, device=values.device).expand(shape)
        weight = placeholder.as_subclass(DenseWeight)
        weight.owner, weight.kind, weight.rows = owner, kind, rows
        grad = values.grad
        weight.gradient = (grad.detach(), owner.weight_positions) if kind == "grad" and grad is not None else None
        return weight

    @property
    def nonzeros(self) -> Tensor:
        """The values at the positions of the non-zero weights, as they are now; a gradient as it was read."""
        if self.gradient is not None:
            return self.gradient[0]
        return self.owner.weight_values if self.kind == "weight" else self.owner.weight_values.detach()

    def refusal(self, what: str) -> str:
        """Why it cannot be changed, and what can."""
        layer = self.owner.layer_name
        return (
            f"{what} cannot change the {self.kind} of {layer}: the layer is packed and stores only its "
            f"{len(self.nonzeros)} non-zero weights. Change the layer's weight_values (their flat positions are "
            f"its weight_positions), or keep the layer masked: sparsify(..., keep_masked={layer!r})"
        )

    def as_kind(self, kind: str) -> "DenseWeight":
        """The same rows of another kind."""
        return self if kind == self.kind else DenseWeight.of(self.owner, kind, self.rows)

    def of_rows(self, rows: slice) -> "DenseWeight":
        """Some rows of the whole weight."""
        part = DenseWeight.of(self.owner, self.kind, rows)
        part.gradient = self.gradient
        return part

    def write_out(self, reader: str) -> Tensor:
        """The dense weight; ``reader``: the name of the function that needs it, for the warning."""
        owner = self.owner
        positions = owner.weight_positions if self.gradient is None else self.gradient[1]
        dense = _with_zeros(self.nonzeros, positions, owner.dense_shape)
        if dense.requires_grad:
            dense.register_hook(lambda grad: _receive_gradient(owner, grad, reader))
        return dense if self.rows is None else dense[self.rows]

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The output of the layer with this weight; some rows of it are computed with all others.

        A matrix is read as a sequence: attention flattens its sequences before it projects them.
        """
        if x.dim() == 2 and self.dim() == 2:
            return self._apply_to_sequence(x[None], bias).squeeze(0)
        return self._apply_to_sequence(x, bias)

    def _apply_to_sequence(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.rows is None:
            return self.owner.apply_weight(x, self.nonzeros, bias)
        y = self.owner.apply_weight(x, self.nonzeros, None)[..., self.rows]
        return y.contiguous() if bias is None else y + bias

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Answer from the sizes, run the kernel, or write the weight out; refuse to be changed."""
        kwargs = kwargs or {}
        name = function_name(func)
        weight = first_of(DenseWeight, (*args, *kwargs.values()))
        if name in METADATA or weight is None:
            with without_torch_function():
                return func(*args, **kwargs)
        if func is torch.autograd.grad:  # not the attribute of this name
            _refuse_gradients_of(first_of(DenseWeight, [*args[1:2], kwargs.get("inputs")]))
        elif name in _ANSWERS:
            return _ANSWERS[name](weight)
        if name in ("requires_grad_", "requires_grad="):
            flag = _flag(args, kwargs)
            if weight.kind == "weight":  # freezing a layer
                weight.owner.weight_values.requires_grad_(flag)
            if weight.kind == "weight" or not flag:
                return weight
        if writes_to_first(DenseWeight, name, args, kwargs) or name in _HOOKS:
            raise RuntimeError(weight.refusal(name))
        if func is F.multi_head_attention_forward:
            return _ATTENTION(*args, **kwargs)
        if name in ("split", "chunk") and (parts := _row_parts(func, args, kwargs)):
            return parts
        arguments = call_arguments(args, kwargs)
        x, bias = arguments.get("input"), arguments.get("bias")
        is_own_weight = arguments.get("weight") is weight and first_of(DenseWeight, [x, bias]) is None
        if is_own_weight and weight.kind != "grad" and is_call_of_layer(func, arguments, weight.owner):
            return weight.apply(arguments["input"], bias)
        dense = weight.write_out(name)

        def written_out(other: DenseWeight) -> Tensor:
            return dense if other is weight else other.write_out(name)

        result = func(*mapped(DenseWeight, written_out, args), **mapped(DenseWeight, written_out, kwargs))
        return read_only(result, dense, weight.refusal("writing to a part") + ", or clone() what was read")


def _flag(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The argument of ``requires_grad_``."""
    return bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))


def dense_weight(owner: WeightOwner) -> Tensor:
    """The weight of a packed layer as code outside of it reads it; where torch compiles that code, with its zeros."""
    if not torch.compiler.is_compiling():
        return DenseWeight.of(owner)
    dense = _with_zeros(owner.weight_values, owner.weight_positions, owner.dense_shape)
    if owner.backward_record is not None:
        dense.register_hook(owner.record_dense_gradient)
    return dense


def _with_zeros(values: Tensor, positions: Tensor, shape: torch.Size) -> Tensor:
    return values.new_zeros(shape.numel()).scatter(0, positions.long(), values).view(shape)


# Its inner calls of F.linear come back with the weights of the projections.
_ATTENTION = handing_over_inner_calls(F.multi_head_attention_forward)


def _row_parts(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DenseWeight, ...]:
    """The parts of ``weight.split(...)`` or ``weight.chunk(...)`` along the rows of a matrix; empty for other calls."""
    weight = args[0] if args else None
    if not isinstance(weight, DenseWeight) or weight.rows is not None or weight.dim() != 2:
        return ()
    if len(args) != 2 or kwargs.get("dim"):  # another dimension
        return ()
    with without_torch_function():
        rows = func(torch.arange(len(weight)), args[1])
    return tuple(weight.of_rows(slice(int(part[0]), int(part[-1]) + 1)) for part in rows)


_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}  # on a copy they would never be called


def _refuse_gradients_of(weight: "DenseWeight | None") -> None:
    if weight is not None:
        raise RuntimeError(
            f"torch.autograd.grad has no gradient of the weight of {weight.owner.layer_name}: the layer is packed, and "
            "the weight is made of its non-zero values. Ask for the gradient of the layer's weight_values (their flat "
            "positions are its weight_positions)"
        )


def _receive_gradient(owner: WeightOwner, grad: Tensor, reader: str) -> None:
    """Called in backward: a dense read was part of the training, not just of logging."""
    owner.record_dense_gradient(grad)
    if not owner.dense_read_warned:
        owner.dense_read_warned = True
        warnings.warn(
            f"{reader}() reads the weight of {owner.layer_name} as a dense tensor, which a packed layer has to write "
            "out at every step: correct, but slower than a masked layer. To keep this layer masked: "
            f"sparsify(..., keep_masked={owner.layer_name!r})",
            stacklevel=2,
        )


_ANSWERS: dict[str, Callable[[DenseWeight], Any]] = {
    "requires_grad": lambda weight: weight.kind == "weight" and weight.nonzeros.requires_grad,
    "is_leaf": lambda weight: False,
    "grad": lambda weight: None if weight.owner.weight_values.grad is None else weight.as_kind("grad"),
    "data": lambda weight: weight.as_kind("data" if weight.kind == "weight" else weight.kind),
    "detach": lambda weight: weight.as_kind("data" if weight.kind == "weight" else weight.kind),
}
