"""Layers made of plain lists, small enough to check by hand."""

import torch

from rewire.core.layer import Signal, read_score
from rewire.core.topology import ScoredPositions


class ListLayer:
    """A layer whose signals are written out; ``weight`` is ``None`` where no weight exists."""

    def __init__(self, weight, grad=None, momentum=None, sign=None, name="layer", frozen=False):
        self.name, self.shape, self.frozen = name, torch.Size([len(weight)]), frozen
        self._active = torch.tensor([i for i, w in enumerate(weight) if w is not None], dtype=torch.int64)
        self.nnz, self.span = len(self._active), range(len(weight))
        empty = [0.0] * len(weight)
        self._signals = {
            Signal.WEIGHT: torch.tensor([w or 0.0 for w in weight], dtype=torch.float64),
            Signal.GRAD: torch.tensor(grad if grad is not None else empty, dtype=torch.float64),
            Signal.MOMENTUM: torch.tensor(momentum if momentum is not None else empty, dtype=torch.float64),
            Signal.SIGN: torch.tensor(sign if sign is not None else empty, dtype=torch.float64),
        }

    def active(self):
        return self._active

    def read(self, signal):
        if not isinstance(signal, Signal):
            return read_score(self, signal)
        return self._signals[signal][self._active]

    def read_at(self, signal, positions):
        if not isinstance(signal, Signal):
            return signal(*(self._signals[one][positions] for one in signal.reads))
        return self._signals[signal][positions]

    def top_inactive(self, signal, k, floor=0.0):
        """By sorting everything: the plain twin of what stores do."""
        reads = (signal,) if isinstance(signal, Signal) else signal.reads
        values = [self._signals[one] for one in reads]
        values = (values[0] if isinstance(signal, Signal) else signal(*values)).abs()
        inactive = set(range(len(values))) - set(self._active.tolist())
        strong = [i for i in inactive if values[i] >= floor and values[i] > 0]
        best = sorted(sorted(strong, key=lambda i: (-values[i].item(), i))[:k])
        return ScoredPositions(values[best], torch.tensor(best, dtype=torch.int64))


_ = None  # an inactive weight, so that layers read like pictures
