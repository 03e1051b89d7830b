"""Optimizers that evaluate a closure inside ``step``: the gradients appear there, not before it."""

from collections.abc import Callable
from typing import Any

import torch


def closure_in(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any] | None:
    """The closure among the arguments of ``step``, if there is one."""
    # `args` may carry the optimizer itself first; the closure is the other callable, or a keyword.
    closures = [argument for argument in args if callable(argument) and argument is not optimizer]
    return closures[0] if closures else kwargs.get("closure")


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
    closure = closure_in(optimizer, args, kwargs)
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

    if kwargs.get("closure") is closure:
        return args, kwargs | {"closure": evaluate}
    return tuple(evaluate if argument is closure else argument for argument in args), kwargs
