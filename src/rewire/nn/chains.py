"""Convolutions, batch norms, ReLUs and sums of a model that run as one chain of stages (kernels/batch/chain.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rewire._torch import is_intercepted
from rewire.kernels.batch.chain import StageTensors, run_chain
from rewire.kernels.batch.chain_plan import Stage, chain_shapes
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.nn.hwcn import HwcnBatchNorm2d
from rewire.nn.packed import NO_RELU, PackedConv2d


@dataclass(eq=False)
class ConvNorm:
    """A convolution and the batch norm behind it, with what follows; see ``Stage``, which it becomes."""

    conv: PackedConv2d
    norm: HwcnBatchNorm2d
    source: int
    relu_limit: float = NO_RELU
    addend: int | None = None
    pool: bool = False

    def stage(self) -> Stage:
        """What the kernels need to know."""
        return Stage(self.source, self.conv.geometry, self.norm.eps, self.relu_limit, self.addend, self.pool)

    def tensors(self) -> StageTensors:
        """What the kernels read."""
        conv, norm = self.conv, self.norm
        return StageTensors(conv.weight_values, conv.bias, norm.weight, norm.bias, conv.weight_positions)

    def can_run(self) -> bool:
        """Whether the kernels compute what the two modules compute now, and no rewiring needs what lies between."""
        conv, norm = self.conv, self.norm
        if conv.backward_record is not None or conv.runs_users_forward or conv.relu_limit >= 0:
            return False
        if conv.extra_padding != (0, 0) or not norm.affine or norm.num_features != conv.geometry.shape[0]:
            return False
        if conv.bias is not None and not runs_native(conv.bias):
            return False
        return norm.uses_batch_moments and runs_native(conv.weight_values, norm.weight, norm.bias)


@dataclass(eq=False)
class ModuleChain:
    """Stages that run together, and all modules that are not called then."""

    stages: Sequence[ConvNorm]
    modules: Sequence[nn.Module]

    def run(self, x: Tensor) -> Tensor | None:
        """The output in training mode; ``None`` where the modules have to run one by one."""
        if not _is_batch(x) or not all(stage.can_run() for stage in self.stages):
            return None
        if any(is_intercepted(module) for module in self.modules):
            return None
        stages = tuple(stage.stage() for stage in self.stages)
        try:
            shapes = chain_shapes(stages, tuple(x.shape[1:]))
        except ValueError:  # the modules say what is wrong
            return None
        y, moments = run_chain(x, stages, [stage.tensors() for stage in self.stages])
        for stage, (mean, variance), (_, height, width) in zip(self.stages, moments, shapes.before_norm, strict=True):
            stage.norm.update_running_moments(mean, variance, float(len(x) * height * width))
        return y


def _is_batch(x: Tensor) -> bool:
    """Whether the kernels can take ``x``."""
    if not isinstance(x, Tensor) or not is_eager(x) or not runs_native(x) or torch.is_autocast_enabled("cpu"):
        return False
    return x.dim() == 4 and len(x) > 1
