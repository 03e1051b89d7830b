"""Optimizers that evaluate a closure inside ``step``: the gradients appear there, not before it."""

from collections.abc import Callable
from typing import Any

import torch


def wrap_closure(
    optimizer: torch.optim.Optimizer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: Callable[[], None],
    later: Callable[[], None],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``step`` with its closure wrapped, or ``None`` if there is no closure.

    ``first`` is called after the closure's first evaluation in a step, whose gradients are the ones to rank;
    ``later`` after each of the others.
    """
    # `args` may carry the optimizer itself first; the closure is the other callable, or a keyword.
    given = [a for a in args if callable(a) and a is not optimizer]
    closure = given[0] if given else kwargs.get("closure")
    if closure is None:
        return None
    evaluated = False

    def evaluate() -> Any:
        nonlocal evaluated
        loss = closure()
        (later if evaluated else first)()
        evaluated = True
        return loss

    args = tuple(evaluate if a in given else a for a in args)
    return args, kwargs if given else kwargs | {"closure": evaluate}
