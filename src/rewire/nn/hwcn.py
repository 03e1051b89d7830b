"""Twins of batch norm, ReLU, pooling and ``nn.Sequential`` that keep the batch innermost and read maps less often.

In a ``nn.Sequential`` the output of a module goes to the next one and nowhere else. So a convolution can take the
moments for the batch norm behind it, and batch norm can apply the ReLU behind it, unless a hook watches a module.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rewire.kernels.batch import norm, ops, pooling
from rewire.kernels.batch.norm import Moments
from rewire.kernels.geometry import is_batch_innermost
from rewire.nn.packed import Packed, PackedConv2d, pair


class InnermostBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that keeps the batch innermost; anything unusual goes to torch's own."""

    def knows(self, x: Tensor) -> bool:
        """Whether the kernel computes this."""
        return is_batch_innermost(x) and self.affine and ops.is_fast(x, self.weight) and x.numel() > x.shape[1]

    @property
    def uses_batch(self) -> bool:
        """Whether the moments are those of the batch, and not the running ones."""
        return self.training or self.running_mean is None

    def forward(self, input: Tensor) -> Tensor:
        """Normalise, and move the running statistics while training."""
        if not self.knows(input):
            plain: Tensor = super().forward(input)
            return plain
        return self.run(input) if self.uses_batch else self._evaluate(input)

    def run(self, x: Tensor, limit: float = -1.0, found: Moments | None = None, pool: bool = False) -> Tensor:
        """Over the batch, with the ReLU and the pooling that follow; ``found``: the moments, where they are known."""
        y: Tensor
        if ops.is_eager(x, self.weight):
            y, (mean, variance) = norm.batch_norm(x, self.weight, self.bias, self.eps, limit, found, pool)
        else:
            y, mean, variance = norm.operator(x, self.weight, self.bias, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
                count = x.numel() / x.shape[1]
                self.running_mean.lerp_(mean, share)
                self.running_var.lerp_(variance * (count / (count - 1)), share)
        return y

    def _evaluate(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


def _relu(x: Tensor, limit: float) -> Tensor | None:
    """The kernel's ReLU where it is of use: maps whose memory is worth using again."""
    known = is_batch_innermost(x) and ops.is_eager(x) and ops.is_fast(x)
    return norm.relu(x, limit) if known else None


class InnermostReLU(nn.ReLU):
    """``nn.ReLU`` in memory that is used again."""

    def forward(self, input: Tensor) -> Tensor:
        """At least zero."""
        y = None if self.inplace else _relu(input, math.inf)
        return super().forward(input) if y is None else y


class InnermostReLU6(nn.ReLU6):
    """``nn.ReLU6`` in memory that is used again."""

    def forward(self, input: Tensor) -> Tensor:
        """At least zero and at most six."""
        y = None if self.inplace else _relu(input, 6.0)
        return super().forward(input) if y is None else y


class InnermostMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` that keeps the batch innermost."""

    def forward(self, input: Tensor) -> Tensor:
        """The largest under each window."""
        if is_plain(self) and is_batch_innermost(input) and ops.is_fast(input):
            y: Tensor = pooling.max_pool2d(input, window_of(self))
        else:
            y = super().forward(input)
        return y


class InnermostAvgPool2d(nn.AvgPool2d):
    """``nn.AvgPool2d`` that keeps the batch innermost."""

    def forward(self, input: Tensor) -> Tensor:
        """The mean under each window."""
        if is_plain(self) and is_batch_innermost(input) and ops.is_fast(input):
            y: Tensor = pooling.avg_pool2d(input, window_of(self), self.count_include_pad)
        else:
            y = super().forward(input)
        return y


class InnermostAdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """``nn.AdaptiveAvgPool2d`` that keeps the batch innermost where it takes the mean of the whole map."""

    def forward(self, input: Tensor) -> Tensor:
        """The mean under each window."""
        if is_plain(self) and is_batch_innermost(input) and ops.is_fast(input):
            y: Tensor = pooling.avg_pool2d(input, [*input.shape[2:], *input.shape[2:], 0, 0], True)
        else:
            y = super().forward(input)
        return y


class InnermostFlatten(nn.Flatten):
    """``nn.Flatten`` that keeps the batch innermost, for the linear layer that follows."""

    def forward(self, input: Tensor) -> Tensor:
        """All but the batch in one dimension."""
        if (self.start_dim, self.end_dim) == (1, -1) and is_batch_innermost(input) and len(input) > 1:
            return input.permute(1, 2, 3, 0).reshape(-1, len(input)).t()
        y: Tensor = super().forward(input)
        return y


class InnermostLinear(nn.Linear):
    """A dense ``nn.Linear`` behind packed layers, for inference: torch is slow where the batch is innermost."""

    def forward(self, input: Tensor) -> Tensor:
        """The same product the other way round: weight times input, whose rows are whole then."""
        if input.dim() != 2 or len(input) == 1 or not input.t().is_contiguous():
            plain: Tensor = super().forward(input)
            return plain
        y = self.weight @ input.t() if self.bias is None else torch.addmm(self.bias[:, None], self.weight, input.t())
        return y.t()


class InnermostSequential(nn.Sequential):
    """``nn.Sequential`` that runs what belongs together in one go."""

    def forward(self, input: Tensor) -> Tensor:
        """Module after module."""
        modules, y = list(self._modules.values()), input
        at = 0
        while at < len(modules):
            y, taken = _run(modules[at : at + 4], y)
            at += taken
        return y


def _run(modules: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, int]:
    """The output of as many of the modules as run in one go, and their number."""
    first, rest = modules[0], modules[1:]
    if not isinstance(x, Tensor) or not ops.is_eager(x) or not ops.is_fast(x) or not is_alone(first):
        return first(x), 1
    if isinstance(first, PackedConv2d) and rest and isinstance(rest[0], InnermostBatchNorm2d):
        return _conv_norm(first, rest[0], rest[1:], x)
    if isinstance(first, InnermostBatchNorm2d) and first.knows(x) and first.uses_batch:
        return _norm_on(first, rest, x)
    if isinstance(first, Packed) and first.tape is None and first.limit < 0:
        limit = relu_limit(rest)
        return first.run(x, limit), 1 + (limit >= 0)
    return first(x), 1


def _conv_norm(
    conv: PackedConv2d, after: InnermostBatchNorm2d, rest: Sequence[nn.Module], x: Tensor
) -> tuple[Tensor, int]:
    """A convolution that takes the moments, and the batch norm that uses them."""
    outputs = conv.geometry.shape[0]
    fits = x.dim() == 4 and len(x) > 1 and after.affine and after.num_features == outputs and ops.is_fast(conv.weight)
    if not (fits and after.uses_batch and is_alone(after) and ops.is_fast(after.weight)):
        return conv(x), 1
    found = x.new_empty(outputs), x.new_empty(outputs)
    y, taken = _norm_on(after, rest, conv.run(x, conv.limit, found), found)
    return y, taken + 1


def _norm_on(
    first: InnermostBatchNorm2d, rest: Sequence[nn.Module], x: Tensor, found: Moments | None = None
) -> tuple[Tensor, int]:
    """Batch norm with the ReLU behind it, if there is one, and with the halving of the map behind that."""
    limit = relu_limit(rest)
    pool = limit >= 0 and len(rest) > 1 and _halves(rest[1], x)
    return first.run(x, limit, found, pool), 1 + (limit >= 0) + pool


def _halves(module: nn.Module, x: Tensor) -> bool:
    """Whether a module takes the largest of every 2x2 pixels, and leaves none over."""
    if type(module) is not InnermostMaxPool2d or not is_alone(module) or x.shape[2] % 2 or x.shape[3] % 2:
        return False
    return is_plain(module) and window_of(module) == [2, 2, 2, 2, 0, 0]


def relu_limit(modules: Sequence[nn.Module]) -> float:
    """The upper limit of the ReLU that comes first, below zero if there is none."""
    kind = type(modules[0]) if modules and is_alone(modules[0]) else None
    if kind in (nn.ReLU, InnermostReLU):
        return math.inf
    return 6.0 if kind in (nn.ReLU6, InnermostReLU6) else -1.0


def is_alone(module: nn.Module) -> bool:
    """Whether no hook sees what goes in or comes out."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and not _has_any_global_hook()


def add_relu(x: Tensor, other: Tensor, limit: float) -> Tensor:
    """``x + other``, clamped to [0, limit] unless that is below zero."""
    if _alike(x, other) and not (torch.is_grad_enabled() and (x.requires_grad or other.requires_grad)):
        return norm.activate(x, other, limit)
    y = x + other
    return y.clamp(0, limit) if limit >= 0 else y


def _alike(x: object, other: object) -> bool:
    """Whether two maps lie in memory alike, without gaps, where the kernel can take them."""
    if not (isinstance(x, Tensor) and isinstance(other, Tensor) and ops.is_eager(x, other) and ops.is_fast(x, other)):
        return False
    dense = is_batch_innermost(x) or x.is_contiguous()
    return dense and x.shape == other.shape and x.stride() == other.stride()


TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Sequential: InnermostSequential,
    nn.ReLU: InnermostReLU,
    nn.ReLU6: InnermostReLU6,
    nn.BatchNorm2d: InnermostBatchNorm2d,
    nn.MaxPool2d: InnermostMaxPool2d,
    nn.AvgPool2d: InnermostAvgPool2d,
    nn.AdaptiveAvgPool2d: InnermostAdaptiveAvgPool2d,
    nn.Flatten: InnermostFlatten,
}


def keep_innermost(module: nn.Module) -> None:
    """In place: let a module keep the batch innermost, if it has a twin that does."""
    module.__class__ = TWINS.get(type(module), type(module))


def leave_innermost(module: nn.Module) -> None:
    """In place: torch's own module again, if this is a twin."""
    module.__class__ = next((plain for plain, twin in TWINS.items() if type(module) is twin), type(module))


def is_plain(pool: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d) -> bool:
    """Whether the kernels compute this pooling."""
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        return pool.output_size in (1, (1, 1))
    if isinstance(pool, nn.AvgPool2d):
        return not pool.ceil_mode and pool.divisor_override is None
    return not (pool.ceil_mode or pool.return_indices) and pair(pool.dilation) == (1, 1)


def window_of(pool: nn.MaxPool2d | nn.AvgPool2d) -> list[int]:
    """Size, stride and padding."""
    return [*pair(pool.kernel_size), *pair(pool.stride), *pair(pool.padding)]
