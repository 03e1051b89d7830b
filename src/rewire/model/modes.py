"""Evaluation mode for a moment: every module returns to the mode it was in."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, then give each module its own mode back.

    ``model.train(model.training)`` would not do: it puts a frozen ``BatchNorm`` back into training mode.

    >>> model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Dropout())
    >>> with evaluating(model):
    ...     model[1].training
    False
    >>> [module.training for module in model]
    [False, True]
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
