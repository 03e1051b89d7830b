"""The hooks on the optimizers' steps. Of several optimizers, one step of the training is one step of each of them."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from rewire._torch import never_compiled
from rewire.distributed.dtensor import local
from rewire.rewirer.closures import wrap_closure
from rewire.rewirer.running_steps import RunningSteps
from rewire.rewirer.state import is_trial_step
from rewire.rewirer.unfollowed import unwatch, watch
from rewire.stores.optimizer.optimizers import trained_by
from rewire.stores.protocol import Store, StoredLayer


class OptimizerSteps:
    """Hooks on all optimizers of a store.

    ``before(optimizer, first)`` is called when the gradients of an optimizer are complete; if it is the first one of a
    step, those of all. ``after(last)`` is called when it has stepped; ``last``: every other optimizer has, too.
    ``look_ahead()`` is called before a closure computes the gradients. ``followed``: optimizers that were
    followed before. They may step, uncounted; any other optimizer of the layers is refused.
    """

    def __init__(
        self,
        store: Store,
        before: Callable[[torch.optim.Optimizer, bool], None],
        after: Callable[[bool], None],
        look_ahead: Callable[[], None],
        followed: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        self.store, self._before_step, self._after_step, self._look_ahead = store, before, after, look_ahead
        self.cycle = Cycle(store.optimizers.all)
        self.running = RunningSteps()
        self.followed = weakref.WeakSet([*followed, *store.optimizers.all])
        self._is_trial = False  # whether the step under way is not part of the training
        self._hooks: list[RemovableHandle] = []
        for optimizer in store.optimizers.all:
            self._hooks += [
                optimizer.register_step_pre_hook(never_compiled(self._before)),
                optimizer.register_step_post_hook(never_compiled(self._after)),
            ]
        watch(store.layers, self)

    def remove(self) -> None:
        """Detach from the optimizers."""
        unwatch(self.store.layers)
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if not self.running.begin(optimizer):
            return None
        self._is_trial = is_trial_step(optimizer, self.store.layers, self.store.ranks)
        if self._is_trial:
            return None
        first = self.cycle.begins(optimizer)
        if not first:
            self.cycle.refuse_changed(optimizer, self.store.layers)

        def after_first_evaluation() -> None:
            self._before_step(optimizer, first)
            self.store.keep_inactive_grads = False

        # If the last step raised in its closure, what it had set up for further evaluations is still in place.
        wrapped = wrap_closure(
            optimizer, args, kwargs, self._look_ahead, after_first_evaluation, self.store.clear_inactive_grads
        )
        if wrapped is None:
            self._before_step(optimizer, first)
        return wrapped

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.running.end(optimizer) and not self._is_trial:
            self._after_step(self.cycle.completes(optimizer))


class Cycle:
    """Which optimizers have stepped since all of them had. With one optimizer, every step is a cycle."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        self._stepped: list[torch.optim.Optimizer] = []
        self._scaled = False  # whether the gradients of the first one were those of a GradScaler, not unscaled yet
        self._ranked: dict[str, float] = {}  # sizes of gradients that were ranked before their own optimizer stepped
        self._warned = False

    def begins(self, optimizer: torch.optim.Optimizer) -> bool:
        """Before a step: whether it is the first of a cycle.

        An optimizer that steps again before the others have stepped begins a new cycle; the old one is not counted.
        """
        if any(other is optimizer for other in self._stepped):
            if not self._warned:
                self._warned = True
                missing = [
                    type(other).__name__ for other in self.optimizers if all(other is not it for it in self._stepped)
                ]
                warnings.warn(
                    f"{type(optimizer).__name__} steps again before {' and '.join(missing)} stepped (a GradScaler may "
                    "have skipped it): rewirings count a step when each optimizer has stepped, and wait until then",
                    stacklevel=5,
                )
            self._stepped.clear()
        return not self._stepped

    def completes(self, optimizer: torch.optim.Optimizer) -> bool:
        """After a step: whether every optimizer has stepped."""
        self._stepped.append(optimizer)
        if len(self._stepped) < len(self.optimizers):
            return False
        self._stepped.clear()
        return True

    def remember(self, optimizer: torch.optim.Optimizer, layers: Iterable[StoredLayer], ranked: bool) -> None:
        """Before the first optimizer steps: if all gradients were ranked, remember those of the other optimizers."""
        self._ranked = {}
        if ranked and len(self.optimizers) > 1:
            ours = trained_by(optimizer)
            self._scaled = getattr(optimizer, "grad_scale", None) is not None
            self._ranked = {layer.name: _size(layer) for layer in layers if id(layer.parameter) not in ours}

    def refuse_changed(self, optimizer: torch.optim.Optimizer, layers: Iterable[StoredLayer]) -> None:
        """Raise if the gradients of a later optimizer are no longer those that were ranked."""
        ours, ranked = trained_by(optimizer), self._ranked
        mine = [layer for layer in layers if layer.name in ranked and id(layer.parameter) in ours]
        scaled = getattr(optimizer, "grad_scale", None) is not None
        changed = [layer.name for layer in mine if ranked[layer.name] != _size(layer) or scaled != self._scaled]
        for layer in mine:
            del ranked[layer.name]
        if changed:
            raise RuntimeError(
                f"the gradients of {', '.join(changed)} changed, or are scaled otherwise, between the step of "
                f"{type(self._stepped[0]).__name__} and that of {type(optimizer).__name__}, and the rewiring ranks "
                "the gradients of all layers at once: complete all gradients before the first optimizer steps. With a "
                "GradScaler, call scaler.unscale_(optimizer) for every optimizer first. Optimizers that step inside of "
                "the backward pass need a method that ranks no gradients"
            )


def _size(layer: StoredLayer) -> float:
    """A number that changes with the gradient. torch's version counter does not notice ``GradScaler.unscale_``."""
    grad = layer.parameter.grad
    return 0.0 if grad is None else float(local(grad).abs().sum().nan_to_num())
