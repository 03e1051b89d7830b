"""Optimizers that evaluate a closure inside ``step``: the gradients appear there, not before it."""

from collections.abc import Callable
from typing import Any

import torch


def wrap_closure(
    optimizer: torch.optim.Optimizer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    begin: Callable[[], None],
    first: Callable[[], None],
    later: Callable[[], None],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``step`` with its closure wrapped, or ``None`` if there is no closure.

    ``begin`` is called before the closure's first evaluation in a step; ``first`` after it: its gradients are the ones
    to rank; ``later`` after each of the other evaluations.
    """
    # `args` may carry the optimizer itself first; the closure is the other callable, or a keyword.
    closures = [a for a in args if callable(a) and a is not optimizer]
    closure = closures[0] if closures else kwargs.get("closure")
    if closure is None:
        return None
    evaluated = False

    def evaluate() -> Any:
        nonlocal evaluated
        if not evaluated:
            begin()
        loss = closure()
        (later if evaluated else first)()
        evaluated = True
        return loss

    args = tuple(evaluate if a in closures else a for a in args)
    return args, kwargs if closures else kwargs | {"closure": evaluate}
