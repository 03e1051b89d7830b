"""Which modules of an ``nn.Sequential`` run together: fewer passes over the activations, the same results.

In a Sequential the output of a module goes to the next module and nowhere else, so these groups run together:

- a packed convolution, the batch norm behind it, in training, the ReLU and the 2x2 max pooling behind that: one stage
  (chains.py). The convolution computes the moments as well;
- a residual block whose forward is made of such stages and sums (blocks.py), in training;
- batch norm, the ReLU behind it and the 2x2 max pooling behind that;
- a packed layer and the ReLU behind it; a linear layer of sequences also with GELU or SiLU.

A hook would notice that its module is not called, and a ``forward`` that was put on one module would not run: fusion is
skipped for both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rewire._torch import is_intercepted
from rewire.kernels.batch.activation import Activation, Kind
from rewire.kernels.batch.norm import Moments
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.nn.blocks import block_chain
from rewire.nn.chains import ConvNorm, ModuleChain
from rewire.nn.hwcn import HwcnBatchNorm2d, HwcnMaxPool2d, has_pool_kernel, leading_relu_limit, pool_window
from rewire.nn.packed import Packed, PackedConv2d, PackedLinear

LONGEST_GROUP = 4  # convolution, batch norm, ReLU, max pooling


class HwcnSequential(nn.Sequential):
    """``nn.Sequential`` that runs neighbouring modules together where one kernel computes them."""

    def forward(self, input: Tensor) -> Tensor:
        """Module after module, or group after group."""
        modules = list(self)
        x, done = input, 0
        while done < len(modules):
            x, count = _run_group(modules[done : done + LONGEST_GROUP], x)
            done += count
        return x


def _run_group(modules: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, int]:
    """The output of the longest group that begins with the first module, and the number of modules in it."""
    first, following = modules[0], modules[1:]
    if not isinstance(x, Tensor) or not is_eager(x) or is_intercepted(first):
        return first(x), 1
    if isinstance(first, Packed) and first.runs_users_forward:
        return first(x), 1
    if isinstance(first, PackedLinear) and first.backward_record is None and first.relu_limit < 0:
        activation = leading_activation(following)
        if activation is not None and first.reads_tokens(x, first.weight_values):
            return first.apply_to_tokens(x, first.weight_values, first.bias, activation), 2
    if not runs_native(x) or torch.is_autocast_enabled("cpu"):  # the kernels below take and return float32
        return first(x), 1
    if isinstance(first, PackedConv2d) and following and isinstance(following[0], HwcnBatchNorm2d):
        y, count = _run_stage(first, following[0], following[1:], x) if x.dim() == 4 else (None, 0)
        return (y, count) if y is not None else _run_conv_and_norm(first, following[0], following[1:], x)
    if isinstance(first, HwcnBatchNorm2d) and first.has_kernel_for(x) and first.uses_batch_moments:
        return _run_norm(first, following, x)
    if isinstance(first, Packed) and first.backward_record is None and first.relu_limit < 0:
        relu_limit = leading_relu_limit(following)
        return first.forward_fused(x, relu_limit), 1 + (relu_limit >= 0)
    chain = block_chain(first, (nn.Sequential.forward, HwcnSequential.forward)) if first.training else None
    y = None if chain is None else chain.run(x)
    return first(x) if y is None else y, 1


def _run_stage(
    conv: PackedConv2d, batch_norm: HwcnBatchNorm2d, following: Sequence[nn.Module], x: Tensor
) -> tuple[Tensor | None, int]:
    """Convolution, batch norm, ReLU and max pooling as one stage; no output where they have to run one by one."""
    relu_limit = leading_relu_limit(following)
    height, width = conv.geometry.output(x.shape[2], x.shape[3])
    max_pool = relu_limit >= 0 and len(following) > 1 and _is_2x2_max_pool(following[1], height, width)
    stage = ConvNorm(conv, batch_norm, 0, relu_limit, None, max_pool)
    count = 2 + (relu_limit >= 0) + max_pool
    return ModuleChain([stage], [conv, batch_norm]).run(x), count


def _run_conv_and_norm(
    conv: PackedConv2d, batch_norm: HwcnBatchNorm2d, following: Sequence[nn.Module], x: Tensor
) -> tuple[Tensor, int]:
    """A convolution that also computes the moments of its output, and the batch norm that normalises by them."""
    channels = conv.geometry.shape[0]
    batched = x.dim() == 4 and len(x) > 1
    norm_fits = (
        batch_norm.affine and batch_norm.num_features == channels and runs_native(conv.weight_values, batch_norm.weight)
    )
    if not (batched and norm_fits and batch_norm.uses_batch_moments and not is_intercepted(batch_norm)):
        return conv(x), 1
    moments = x.new_empty(channels), x.new_empty(channels)
    activation = conv.forward_fused(x, conv.relu_limit, moments)
    y, count = _run_norm(batch_norm, following, activation, moments)
    return y, count + 1


def _run_norm(
    batch_norm: HwcnBatchNorm2d, following: Sequence[nn.Module], x: Tensor, moments: Moments | None = None
) -> tuple[Tensor, int]:
    """Batch norm with the ReLU behind it and with the 2x2 max pooling behind that, if they are there."""
    relu_limit = leading_relu_limit(following)
    max_pool = relu_limit >= 0 and len(following) > 1 and _is_2x2_max_pool(following[1], x.shape[2], x.shape[3])
    y = batch_norm.normalize_batch(x, relu_limit, moments, max_pool)
    return y, 1 + (relu_limit >= 0) + max_pool


def _is_2x2_max_pool(module: nn.Module, height: int, width: int) -> bool:
    """Whether a module takes the maximum of every 2x2 pixels, with no row or column left over."""
    if type(module) is not HwcnMaxPool2d or is_intercepted(module) or height % 2 or width % 2:
        return False
    return has_pool_kernel(module) and pool_window(module) == [2, 2, 2, 2, 0, 0]


def leading_activation(modules: Sequence[nn.Module]) -> Activation | None:
    """The activation function that comes first, if a token-major linear layer can apply it and nothing intercepts it.

    >>> leading_activation([nn.GELU(approximate="tanh")])
    Activation(kind=<Kind.GELU_TANH: 3>, limit=inf)
    """
    relu_limit = leading_relu_limit(modules)
    if relu_limit >= 0:
        return Activation(Kind.RELU, relu_limit)
    first = modules[0] if modules and not is_intercepted(modules[0]) else None
    if type(first) is nn.GELU:
        return Activation(Kind.GELU if first.approximate == "none" else Kind.GELU_TANH)
    return Activation(Kind.SILU) if type(first) is nn.SiLU else None
