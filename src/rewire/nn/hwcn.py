"""Batch norm, ReLU, pooling and flatten in HWCN layout: N, C, H, W tensors with [H, W, C, N] in memory.

The packed convolutions read and write this layout. torch's elementwise operations keep it, but its batch norm and
pooling convert to NCHW, which costs more than a sparse layer computes. The modules here keep the layout. Each one
computes what the torch module of the same name computes and hands over to it for inputs that the kernels do not cover.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire._torch import is_intercepted
from rewire.kernels.batch import norm, pooling, relu
from rewire.kernels.batch.norm import Moments
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.kernels.geometry import is_hwcn
from rewire.nn.coverage import pair
from rewire.nn.packed import NO_RELU


class HwcnBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` in HWCN layout."""

    def has_kernel_for(self, x: Tensor) -> bool:
        """Whether the kernels can normalise ``x``; otherwise torch does."""
        return is_hwcn(x) and self.affine and runs_native(x, self.weight) and x.numel() > x.shape[1]

    @property
    def uses_batch_moments(self) -> bool:
        """Whether mean and variance are those of the batch, not the running ones."""
        return self.training or self.running_mean is None

    def forward(self, input: Tensor) -> Tensor:
        """Normalise every channel."""
        if not self.has_kernel_for(input):
            y: Tensor = super().forward(input)
            return y
        return self.normalize_batch(input) if self.uses_batch_moments else self._normalize_by_running_moments(input)

    def normalize_batch(
        self, x: Tensor, relu_limit: float = NO_RELU, moments: Moments | None = None, max_pool: bool = False
    ) -> Tensor:
        """Normalise by the moments of the batch and update the running ones, all in one pass over ``x``.

        ``relu_limit``: apply the ReLU that follows as well. ``moments``: mean and variance of ``x``, if the convolution
        before has computed them already. ``max_pool``: apply the 2x2 max pooling behind the ReLU as well.
        """
        y: Tensor
        if is_eager(x, self.weight):
            y, (mean, variance) = norm.batch_norm(x, self.weight, self.bias, self.eps, relu_limit, moments, max_pool)
        else:
            y, mean, variance = norm.operator(x, self.weight, self.bias, self.eps)
        self.update_running_moments(mean, variance, x.numel() / x.shape[1])
        return y

    @torch.no_grad()
    def update_running_moments(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Move the running moments towards those of a batch with ``count`` numbers per channel, as torch does."""
        if not (self.training and self.track_running_stats):
            return
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)  # torch keeps the unbiased variance

    def _normalize_by_running_moments(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


def _relu(x: Tensor, limit: float) -> Tensor | None:
    """``x`` clamped to [0, limit] in memory from the pool; ``None`` where the kernel does not apply."""
    covered = is_hwcn(x) and is_eager(x) and runs_native(x)
    return relu.relu(x, limit) if covered else None


class HwcnReLU(nn.ReLU):
    """``nn.ReLU`` whose output takes memory from the pool of activations."""

    def forward(self, input: Tensor) -> Tensor:
        """``max(input, 0)``."""
        y = None if self.inplace else _relu(input, math.inf)
        return super().forward(input) if y is None else y


class HwcnReLU6(nn.ReLU6):
    """``nn.ReLU6`` whose output takes memory from the pool of activations."""

    def forward(self, input: Tensor) -> Tensor:
        """``min(max(input, 0), 6)``."""
        y = None if self.inplace else _relu(input, 6.0)
        return super().forward(input) if y is None else y


class HwcnMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` in HWCN layout."""

    def forward(self, input: Tensor) -> Tensor:
        """The maximum of each window."""
        if has_pool_kernel(self) and is_hwcn(input) and runs_native(input):
            y: Tensor = pooling.max_pool2d(input, pool_window(self))
        else:
            y = super().forward(input)
        return y


class HwcnAvgPool2d(nn.AvgPool2d):
    """``nn.AvgPool2d`` in HWCN layout."""

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each window."""
        if has_pool_kernel(self) and is_hwcn(input) and runs_native(input):
            y: Tensor = pooling.avg_pool2d(input, pool_window(self), self.count_include_pad)
        else:
            y = super().forward(input)
        return y


class HwcnAdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """``nn.AdaptiveAvgPool2d`` in HWCN layout, for an output of one pixel; torch computes other sizes."""

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each window."""
        if has_pool_kernel(self) and is_hwcn(input) and runs_native(input):
            height_width = input.shape[2:]
            y: Tensor = pooling.avg_pool2d(input, [*height_width, *height_width, 0, 0], True)
        else:
            y = super().forward(input)
        return y


class HwcnFlatten(nn.Flatten):
    """``nn.Flatten`` whose output keeps the batch innermost: an (N, C * H * W) tensor with [C * H * W, N] in memory."""

    def forward(self, input: Tensor) -> Tensor:
        """All dimensions but the batch as one."""
        if (self.start_dim, self.end_dim) == (1, -1) and is_hwcn(input) and len(input) > 1:
            return input.permute(1, 2, 3, 0).reshape(-1, len(input)).t()
        y: Tensor = super().forward(input)
        return y


class HwcnLinear(nn.Linear):
    """A dense ``nn.Linear`` behind packed layers, for inference: torch is slow on inputs with the batch innermost."""

    def forward(self, input: Tensor) -> Tensor:
        """``weight @ input.t()``, whose operands are both contiguous, instead of ``input @ weight.t()``."""
        if input.dim() != 2 or len(input) == 1 or not input.t().is_contiguous():
            y: Tensor = super().forward(input)
            return y
        y = self.weight @ input.t() if self.bias is None else torch.addmm(self.bias[:, None], self.weight, input.t())
        return y.t()


def add_relu(x: Tensor, other: Tensor, relu_limit: float) -> Tensor:
    """``x + other``, clamped to [0, relu_limit] unless the limit is negative: the end of a residual block.

    >>> add_relu(torch.tensor([1.0, -3.0]), torch.tensor([1.0, 1.0]), math.inf)
    tensor([2., 0.])
    """
    if _share_layout(x, other) and not (torch.is_grad_enabled() and (x.requires_grad or other.requires_grad)):
        return relu.add_relu(x, other, relu_limit)
    y = x + other
    if relu_limit < 0:
        return y
    return torch.relu(y) if relu_limit == math.inf else F.hardtanh(y, 0.0, relu_limit)  # clamp makes integers float


def _share_layout(x: object, other: object) -> bool:
    """Whether two activations have the same shape and strides, without gaps, and the kernels can read them."""
    if not (isinstance(x, Tensor) and isinstance(other, Tensor) and is_eager(x, other) and runs_native(x, other)):
        return False
    without_gaps = is_hwcn(x) or x.is_contiguous()
    return without_gaps and x.shape == other.shape and x.stride() == other.stride()


def leading_relu_limit(modules: Sequence[nn.Module]) -> float:
    """The upper bound of the ReLU that comes first (infinity or 6); negative if none does or if it is intercepted.

    >>> leading_relu_limit([nn.ReLU6(), nn.Flatten()]), leading_relu_limit([nn.Flatten()])
    (6.0, -1.0)
    """
    kind = type(modules[0]) if modules and not is_intercepted(modules[0]) else None
    if kind in (nn.ReLU, HwcnReLU):
        return math.inf
    return 6.0 if kind in (nn.ReLU6, HwcnReLU6) else NO_RELU


def has_pool_kernel(pool: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d) -> bool:
    """Whether the kernels compute a pooling with these settings."""
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        return pool.output_size in (1, (1, 1))
    if isinstance(pool, nn.AvgPool2d):
        return not pool.ceil_mode and pool.divisor_override is None
    return not (pool.ceil_mode or pool.return_indices) and pair(pool.dilation) == (1, 1)


def pool_window(pool: nn.MaxPool2d | nn.AvgPool2d) -> list[int]:
    """Height and width of the window, the stride and the padding of a pooling, as the kernels take them."""
    return [*pair(pool.kernel_size), *pair(pool.stride), *pair(pool.padding)]
