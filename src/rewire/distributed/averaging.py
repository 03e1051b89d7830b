"""Averages the gradients of packed weights over ranks: a rewiring resizes them, and DDP's buckets do not follow.

As in DDP, the backward pass does it: as soon as all gradients of a bucket have been accumulated, an all-reduce of the
bucket starts and runs beside the rest of the pass; at the end of the pass the averages are written back. Buckets are
flat copies that are made anew in every pass, so they follow the weights. All ranks start them in the same order, in a
process group of their own: between those of DDP they would come earlier on some ranks than on others.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from rewire._torch import call_after_accumulation, call_after_backward, reduced_by_ddp, running_backward_pass
from rewire.distributed.group import Group
from rewire.distributed.handshake import ddp_around

BUCKET_BYTES = 1 << 20  # smaller than those of DDP, as the gradients are: several buckets can overlap with the pass


class GradientAverager:
    """Hooks on parameters that DDP ignores. ``averaged`` is called at the end of a pass, after the averages are there.

    Under DDP's ``no_sync`` nothing is sent. A parameter without a gradient on some ranks counts as zero there. As with
    DDP, a backward pass within another (reentrant activation checkpointing) is not supported. ``others``: of the same
    model; a rank that has gradients of these alone must take part in the averages too.
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[nn.Parameter],
        averaged: Callable[[], None],
        others: Iterable[nn.Parameter] = (),
    ) -> None:
        self.group, self._averaged = group.apart(), averaged
        self._weights = list(reversed(parameters))  # about the order in which their gradients arrive
        self._wrappers: list[weakref.ref[DistributedDataParallel]] | None = None  # that decide about ``no_sync``
        self._pass = -1  # the backward pass under way
        self._arrived: set[int] = set()  # parameters, by their index
        self._buckets: list[list[int]] = []
        self._started: list[tuple[Tensor, dist.Work | None]] = []
        self._hooks: list[RemovableHandle] = []
        for index, parameter in enumerate(self._weights):
            self._hooks.append(call_after_accumulation(parameter, self._accumulated, index))
        ours = {id(parameter) for parameter in parameters}
        for other in others:
            if id(other) not in ours and other.requires_grad:
                self._hooks.append(call_after_accumulation(other, self._takes_part))

    def remove(self) -> None:
        """Average nothing any more."""
        for hook in self._hooks:
            hook.remove()

    def _takes_part(self) -> bool:
        """Whether the backward pass under way averages gradients; sees to it that they are averaged at its end."""
        if self.group.size == 1 or not self._sends():
            return False
        if self._pass != running_backward_pass():
            self._pass = running_backward_pass()
            self._arrived, self._started, self._buckets = set(), [], divide(self._weights)
            call_after_backward(self._finish)
        return True

    def _accumulated(self, index: int) -> None:
        if not self._takes_part():
            return
        self._arrived.add(index)
        while len(self._started) < len(self._buckets) and self._arrived.issuperset(self._buckets[len(self._started)]):
            self._start(self._buckets[len(self._started)])

    def _sends(self) -> bool:
        """Whether this pass averages gradients: not under ``no_sync``."""
        if self._wrappers is None:
            wrappers = ddp_around(self._weights)
            for wrapper in wrappers:
                _refuse_reduced_twice(wrapper, self._weights)
            self._wrappers = [weakref.ref(wrapper) for wrapper in wrappers]
        alive = [ref() for ref in self._wrappers]
        return all(wrapper is None or wrapper.require_backward_grad_sync for wrapper in alive)

    @torch.no_grad()
    def _start(self, bucket: Sequence[int]) -> None:
        """Start to average the gradients of a bucket, and how many ranks have one."""
        parameters = [self._weights[index] for index in bucket]
        grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
        exist = grads[0].new_tensor([float(parameter.grad is not None) for parameter in parameters])
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), exist]).div_(self.group.size)
        self._started.append((flat, self.group.start_sum(flat)))

    @torch.no_grad()
    def _finish(self) -> None:
        """At the end of the pass: write the averages back."""
        while len(self._started) < len(self._buckets):  # gradients that never came
            self._start(self._buckets[len(self._started)])
        for bucket, (flat, work) in zip(self._buckets, self._started, strict=True):
            if work is not None:
                work.wait()
            parameters = [self._weights[index] for index in bucket]
            *means, exist = flat.split([*(parameter.numel() for parameter in parameters), len(bucket)])
            for parameter, mean, share in zip(parameters, means, exist.tolist(), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(mean.view_as(parameter))
                elif share > 0:
                    parameter.grad = mean.view_as(parameter).clone()
        self._started, self._pass = [], -1
        self._averaged()


def divide(parameters: Sequence[Tensor]) -> list[list[int]]:
    """The indices of parameters in buckets of one dtype and up to ``BUCKET_BYTES``, a larger parameter by itself.

    >>> divide([torch.zeros(200_000), torch.zeros(50_000), torch.zeros(20_000), torch.zeros(5, dtype=torch.float64)])
    [[0, 1], [2], [3]]
    """
    buckets: list[list[int]] = []
    size = 0
    for index, parameter in enumerate(parameters):
        if not buckets or parameter.dtype != parameters[index - 1].dtype or size + parameter.nbytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(index)
        size += parameter.nbytes
    return buckets


def _refuse_reduced_twice(wrapper: DistributedDataParallel, parameters: Sequence[nn.Parameter]) -> None:
    reduced = reduced_by_ddp(wrapper)
    if any(id(parameter) in reduced for parameter in parameters):
        raise RuntimeError(
            "DDP averages the packed weights too: it learns which weights to leave out from the module that was given "
            "to sparsify. Wrap that module itself, after sparsify, not one that contains it"
        )
