"""A mask that was loaded: optimizer state that was not loaded with it belongs to the mask before."""

from torch import Tensor

from rewire.core.dense_ops import where_true


class LoadedMask:
    """Which mask the optimizer's state of a layer belongs to."""

    def __init__(self) -> None:
        self._before: Tensor | None = None  # while another mask is loaded: the one that optimizer state fits
        self._state_was_loaded = False  # since the last step: it then belongs to the mask that is loaded with it

    def note(self, mask: Tensor) -> None:
        """Before loading: the optimizer's state belongs to this mask."""
        if self._before is None:
            self._before = mask.clone()

    def note_state(self) -> None:
        """The optimizer's state was made, or loaded, for the mask that the model has at the next step."""
        self._state_was_loaded = True

    @property
    def state_is_old(self) -> bool:
        """Whether a mask was loaded, and the optimizer's state is not rearranged for it yet."""
        return self._before is not None and not self._state_was_loaded

    def settle(self, mask: Tensor) -> Tensor | None:
        """At a step: the positions whose state is not theirs yet, if the state is old. From now on it is current."""
        before, is_old = self._before, self.state_is_old
        self._before, self._state_was_loaded = None, False
        return where_true(mask & ~before.to(mask.device)) if is_old and before is not None else None
