"""Notices when something other than the store and the optimizer writes to a masked weight, at almost no cost."""

import warnings
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rewire._torch import version
from rewire.core.dense_ops import take


class WriteWatch:
    """What one weight looked like after the last write that is allowed.

    torch counts writes, except those through ``.data``. Such a write to the whole weight shows at any inactive
    position, so one of them is a witness: it is zero as long as nothing was written. A new tensor behind ``.data``
    shows at its address. On accelerators there is no witness: reading it would wait for the device.
    """

    def __init__(self) -> None:
        self._own_write: tuple[int, int] | None = None
        self._position: tuple[int, ...] | None = None  # of the witness
        self._witness: tuple[Tensor, int] | None = None  # one inactive weight, and the address of the whole tensor

    def remember(self, weight: Tensor) -> None:
        """The store or the optimizer has just written to the weight, as it may."""
        self._own_write = version(weight)

    def choose_witness(self, weight: Tensor, mask: Tensor, dropped: Tensor | None) -> None:
        """The mask is new. ``dropped``: flat positions that have just lost their weight.

        They are the best witnesses: averages and older copies of the weight still have values there.
        """
        self._position = None
        if mask.device.type == "cpu" and mask.numel():
            inactive = None if dropped is None else dropped[~take(mask, dropped)]
            first = int(mask.numpy().argmin()) if inactive is None or not len(inactive) else int(inactive[0])
            position = tuple(int(index) for index in np.unravel_index(first, mask.shape))
            self._position = None if mask[position] else position  # there is no inactive weight in a dense layer
        self.find_witness(weight)

    def find_witness(self, weight: Tensor) -> None:
        """The weight may have another place in memory."""
        self._witness = None
        if self._position is not None and weight.device.type == "cpu":
            self._witness = weight.detach()[self._position], weight.data_ptr()

    def was_written(self, weight: Tensor) -> bool:
        """Whether anyone else wrote to the weight, as far as it can be seen."""
        if self._own_write != version(weight):
            return True
        return self.witness_moved() or (self._witness is not None and weight.data_ptr() != self._witness[1])

    def is_zero_at_witness(self, dense: Tensor) -> bool:
        """Whether what is laid out like the weight is zero at the position of the witness; not where there is none."""
        return self._position is not None and dense.device.type == "cpu" and dense[self._position].item() == 0

    def witness_moved(self) -> bool:
        """Whether the witness is no longer zero."""
        return self._witness is not None and self._witness[0].item() != 0


def warn_of_writes(layers: Sequence[str]) -> None:
    """Say that other code has written to weights that do not exist."""
    warnings.warn(
        f"something other than the optimizer has written to the weight of {_named(layers)}, also "
        "where no weight exists. The values there are zero again from this step on. A dense model's values are "
        "loaded before sparsify, or with load_state_dict(..., strict=False); an average of the weights follows "
        "the model's topology if it was given to rewirer.register_average",
        stacklevel=3,
    )


def warn_of_moves(layers: Sequence[str]) -> None:
    """Say that a step has moved weights that do not exist."""
    warnings.warn(
        f"the step of the optimizer has moved weights of {_named(layers)} that do not exist: something wrote to their "
        "gradients after the Rewirer had cleared them, most likely a step pre-hook that was registered after "
        "sparsify (register it before), or the optimizer itself adds noise. These weights are zero again, and will be "
        "after every step",
        stacklevel=3,
    )


def _named(layers: Sequence[str]) -> str:
    return ", ".join(layers[:3]) + (f" and {len(layers) - 3} more layers" if len(layers) > 3 else "")
