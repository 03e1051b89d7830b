"""How many optimizer steps were completed, without asking the device at every step."""

import torch
from torch import Tensor


class StepCounter:
    """Counts steps. Those that a fused optimizer skipped on the device (GradScaler) are subtracted by ``settle``."""

    def __init__(self) -> None:
        self.at_most = 0  # completed steps, or more by those that were skipped since the last settle()
        self._skipped: Tensor | None = None
        self._latest: Tensor | None = None  # whether the step under way is skipped

    def note_skipped(self, optimizer: torch.optim.Optimizer, begins: bool = True) -> None:
        """Remember, on the device, whether GradScaler tells a fused optimizer to skip the coming step.

        ``begins``: the step is a new one, not that of another optimizer which has just stepped. A step that several
        optimizers make is skipped, once, if any of them skips it.
        """
        if begins:
            self._latest = None
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            now = found_inf.detach().clamp(max=1)
            more = now if self._latest is None else (now - self._latest).clamp(min=0)
            self._latest = now if self._latest is None else torch.maximum(now, self._latest)
            self._skipped = more if self._skipped is None else self._skipped + more

    def advance(self) -> None:
        """A step was made, or skipped."""
        self.at_most += 1

    def settle(self) -> int:
        """The exact number of completed steps. Waits for the device, so ask only where the number matters."""
        if self._skipped is not None:
            self.at_most -= int(self._skipped)
            self._skipped = None
        return self.at_most

    def reset(self, step: int) -> None:
        """Go on counting from here."""
        self.at_most, self._skipped = step, None
