"""How many optimizer steps were completed, without asking the device at every step."""

import torch
from torch import Tensor


class StepCounter:
    """Counts steps. Those that a fused optimizer skipped on the device (GradScaler) are subtracted by ``settle``."""

    def __init__(self) -> None:
        self.at_most = 0  # completed steps, or more by those that were skipped since the last settle()
        self._skipped: Tensor | None = None

    def note_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember, on the device, whether GradScaler tells a fused optimizer to skip the coming step."""
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            now = found_inf.detach().clamp(max=1)
            self._skipped = now if self._skipped is None else self._skipped + now

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
