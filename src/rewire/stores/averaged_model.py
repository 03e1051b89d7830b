"""``torch.optim.swa_utils.AveragedModel``: how it is recognised, and what its update must leave alone.

It makes its copy with ``copy.deepcopy`` in its constructor, so whoever is copied can find it on the call stack. Its
update averages parameters and, with ``use_buffers=True``, buffers too. A topology is a buffer and cannot be averaged:
torch cannot subtract bool tensors, and rounding would turn position 7 into 6. So it is hidden during the update.
"""

import contextlib
import itertools
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rewire._torch import buffers_of, parameters_of, write_count
from rewire.core.state_names import MASK_SUFFIX, POSITIONS_SUFFIX

Seen = list[tuple[weakref.ref[Tensor], int]]  # tensors and their version counters


def averaged_model_under_construction() -> AveragedModel | None:
    """The ``AveragedModel`` whose constructor is on the call stack, if any."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is AveragedModel.__init__.__code__:
            averaged: AveragedModel = frame.f_locals["self"]
            return averaged
        frame = frame.f_back
    return None


class UpdateOfValues:
    """Replaces ``update_parameters`` of one ``AveragedModel``: the same, without the topology among the buffers."""

    def __init__(self, averaged: AveragedModel) -> None:
        self._averaged = weakref.ref(averaged)
        self._compared: Seen = []

    def __call__(self, model: nn.Module) -> None:
        """``AveragedModel.update_parameters``, refused if the model has another topology than its average."""
        averaged = self._averaged()
        assert averaged is not None, "the AveragedModel of this update does not exist any more"
        self._refuse_other_topology(averaged.module, model)
        with hidden_topology(averaged.module), hidden_topology(model):
            type(averaged).update_parameters(averaged, model)

    def _refuse_other_topology(self, average: nn.Module, model: nn.Module) -> None:
        ours, theirs = list(topology_buffers(average)), list(topology_buffers(model))
        tensors = [tensor for _, _, tensor in (*ours, *theirs)]
        if len(tensors) == len(self._compared) and all(
            seen() is tensor and version == write_count(tensor)
            for (seen, version), tensor in zip(self._compared, tensors, strict=True)
        ):
            return
        for (_, name, a), (_, _, b) in itertools.zip_longest(ours, theirs, fillvalue=(None, "", None)):
            if a is None or b is None or a.shape != b.shape or not torch.equal(a, b.to(a.device)):
                raise ValueError(
                    "the average and the model have different topologies, so their values belong to different "
                    f"positions (the first difference is in {name or 'a layer'}). Average only the model that was "
                    "given to AveragedModel, and load the state_dicts of both from one checkpoint"
                )
        self._compared = [(weakref.ref(tensor), write_count(tensor)) for tensor in tensors]

    def __getstate__(self) -> Any:
        return self._averaged()

    def __setstate__(self, averaged: AveragedModel) -> None:
        self.__init__(averaged)  # type: ignore[misc]


def topology_buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Masks and positions: the module, the name of the buffer, the buffer."""
    for module in model.modules():
        for name, buffer in buffers_of(module).items():
            weight = name.removesuffix(MASK_SUFFIX).removesuffix(POSITIONS_SUFFIX)
            if buffer is not None and weight != name and weight in parameters_of(module):
                yield module, name, buffer


@contextlib.contextmanager
def hidden_topology(model: nn.Module) -> Iterator[None]:
    """Within the block, masks and positions are not among the model's buffers."""
    before = [(module, dict(buffers_of(module))) for module in {m: None for m, _, _ in topology_buffers(model)}]
    for module, name, _ in list(topology_buffers(model)):
        del buffers_of(module)[name]
    try:
        yield
    finally:
        for module, buffers in before:  # in their former order
            buffers_of(module).clear()
            buffers_of(module).update(buffers)
