"""Packed linear layers: ``nn.Linear``, and GPT-2's ``Conv1D``, whose weight has the shape (inputs, outputs)."""

import torch
from torch import Tensor, nn

from rewire.kernels.batch.activation import IDENTITY, Activation, Kind
from rewire.kernels.batch.linear import TOKEN_TYPES, linear_tokens
from rewire.kernels.batch.norm import Moments
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.kernels.geometry import Geometry
from rewire.kernels.tuning import MIN_TOKENS
from rewire.nn.packed_base import NO_RELU, Packed, autocast_dtype


class TokenLinear(Packed):
    """A linear layer that keeps only its non-zero weights.

    Sequences (..., tokens, features) are read as they are in memory. A batch of vectors is a 1x1 convolution of images
    of one pixel, with the batch innermost: a chain of layers then reads and writes that layout.
    """

    def reads_tokens(self, x: Tensor, values: Tensor) -> bool:
        """Whether the token-major kernel computes this input."""
        if not (is_eager(x, values) and runs_native(values) and x.device.type == "cpu"):
            return False
        if x.dtype != values.dtype and autocast_dtype(values) is None:
            return False
        count = x.shape[:-1].numel()
        return count > 1 and (x.dim() > 2 or (count >= MIN_TOKENS and x.stride(1) == 1))

    def apply_weight(
        self,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        relu_limit: float = NO_RELU,
        moments: Moments | None = None,
    ) -> Tensor:
        """See ``Packed``."""
        if moments is None and self.reads_tokens(x, values):
            activation = IDENTITY if relu_limit < 0 else Activation(Kind.RELU, relu_limit)
            return self.apply_to_tokens(x, values, bias, activation)
        return super().apply_weight(x, values, bias, relu_limit, moments)

    def apply_to_tokens(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        """The output of the layer and of an activation function behind it for an input (..., features)."""
        autocast = autocast_dtype(values)
        x = x if x.dtype in TOKEN_TYPES else x.to(values.dtype)
        bias = bias if bias is None or bias.dtype == values.dtype else bias.to(values.dtype)
        y = linear_tokens(
            x,
            values,
            self.weight_positions,
            bias,
            self.geometry.shape[:2],
            self.inputs_first,
            activation,
            torch.bfloat16 if autocast == torch.bfloat16 else values.dtype,
        )
        if self.backward_record is not None:
            self.backward_record.record_tokens(x, y, values.dtype, self.inputs_first)
        return y if autocast is None else y.to(autocast)

    def to_images(self, x: Tensor) -> Tensor:
        """From (..., inputs)."""
        inputs = self.kernel_geometry.inputs
        if x.shape[-1] != inputs:
            raise ValueError(f"the layer has {inputs} inputs and was given {tuple(x.shape)}")
        return x.reshape(-1, inputs, 1, 1)

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """To (..., outputs); sequences in the order of torch's own layer, because models call ``view`` on them."""
        y = y.reshape(*x.shape[:-1], self.kernel_geometry.shape[0])
        return y if x.dim() == 2 else y.contiguous()


class PackedLinear(TokenLinear, nn.Linear):  # type: ignore[override]
    """``nn.Linear`` that keeps only its non-zero weights."""

    torch_class = nn.Linear


class PackedInputsFirst(TokenLinear):
    """GPT-2's ``Conv1D``, a linear layer whose weight has the shape (inputs, outputs), with its non-zeros only."""

    inputs_first = True

    @property
    def kernel_positions(self) -> Tensor:
        """The positions in the transposed weight, in the order of the values."""
        inputs, outputs = self.geometry.shape[:2]
        positions = self.weight_positions
        return positions % outputs * inputs + positions // outputs

    @property
    def kernel_geometry(self) -> Geometry:
        """That of the transposed weight."""
        return Geometry((self.geometry.shape[1], self.geometry.shape[0], 1, 1))
