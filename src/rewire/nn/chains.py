"""Convolutions, batch norms, ReLUs and sums of a model that run as one chain of stages (kernels/batch/chain.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rewire._torch import has_hooks
from rewire.kernels.batch.chain import Stage, StageTensors, run_chain
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
        return norm.uses_batch_moments and runs_native(conv.weight_values, norm.weight)


@dataclass(eq=False)
class ModuleChain:
    """Stages that run together, and all modules that are not called then."""

    stages: Sequence[ConvNorm]
    modules: Sequence[nn.Module]
    _fits: dict[torch.Size, bool] = field(default_factory=dict)

    def run(self, x: Tensor) -> Tensor | None:
        """The output in training mode; ``None`` where the modules have to run one by one."""
        if not self._covers(x) or not all(stage.can_run() for stage in self.stages):
            return None
        for module in self.modules:
            if has_hooks(module) or "forward" in module.__dict__:
                return None
        y, moments = run_chain(x, [stage.stage() for stage in self.stages], [stage.tensors() for stage in self.stages])
        for stage, (mean, variance), count in zip(self.stages, moments, self._counts(x), strict=True):
            norm = stage.norm
            if norm.running_mean is not None and norm.running_var is not None:
                norm.update_running_moments(norm.running_mean, norm.running_var, mean, variance, count)
        return y

    def _covers(self, x: Tensor) -> bool:
        """Whether the kernels can take ``x``."""
        if not isinstance(x, Tensor) or not is_eager(x) or not runs_native(x) or torch.is_autocast_enabled("cpu"):
            return False
        if x.shape not in self._fits:
            self._fits[x.shape] = x.dim() == 4 and len(x) > 1 and self._shapes_agree(x)
        return self._fits[x.shape]

    def _shapes_agree(self, x: Tensor) -> bool:
        """Whether every stage can read its source, and every sum has two activations of one shape."""
        shapes = [tuple(x.shape[1:])]
        for stage in self.stages:
            channels, height, width = shapes[stage.source]
            if channels != stage.conv.geometry.inputs:
                return False
            shape = (stage.conv.geometry.shape[0], *stage.conv.geometry.output(height, width))
            if stage.addend is not None and shapes[stage.addend] != shape:
                return False
            if stage.pool:
                if shape[1] % 2 or shape[2] % 2:
                    return False
                shape = shape[0], shape[1] // 2, shape[2] // 2
            shapes.append(shape)
        return True

    def _counts(self, x: Tensor) -> list[float]:
        """Numbers per channel of the output of every convolution."""
        sizes, counts = [(x.shape[2], x.shape[3])], []
        for stage in self.stages:
            height, width = stage.conv.geometry.output(*sizes[stage.source])
            counts.append(float(len(x) * height * width))
            sizes.append((height // 2, width // 2) if stage.pool else (height, width))
        return counts
