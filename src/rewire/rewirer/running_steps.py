"""Which optimizer steps are under way. A step that calls ``super().step()`` is one step, and runs the hooks twice."""

from types import FrameType

import torch

from rewire._torch import calling_frames


class RunningSteps:
    """The calls of ``step`` that have begun and not ended, by optimizer.

    A counter would not do: no hook runs at the end of a step that raises. So the frame of each call is kept, and the
    calls under way are those whose frames are still on the stack. After an exception a frame stays until the next step.
    """

    def __init__(self) -> None:
        self._frames: dict[torch.optim.Optimizer, list[FrameType]] = {}

    def begin(self, optimizer: torch.optim.Optimizer) -> bool:
        """From a hook before a step: whether the step is a new one, not a part of one that is under way."""
        frames = self._under_way(optimizer)
        frames.append(next(calling_frames(3)))  # of torch's wrapper of `step`, behind this method and the hook
        return len(frames) == 1

    def end(self, optimizer: torch.optim.Optimizer) -> bool:
        """From a hook after a step: whether it ends the step, not only a part of it."""
        frames = self._frames.get(optimizer, [])
        if len(frames) > 1:
            frames = self._under_way(optimizer)
        if frames:
            frames.pop()
        return not frames

    def exist(self) -> bool:
        """Whether any step is under way in this thread."""
        return any(self._under_way(optimizer) for optimizer in self._frames)

    def _under_way(self, optimizer: torch.optim.Optimizer) -> list[FrameType]:
        frames = self._frames.setdefault(optimizer, [])
        if frames:
            stack = set(calling_frames(2))
            frames[:] = [frame for frame in frames if frame in stack]
        return frames
