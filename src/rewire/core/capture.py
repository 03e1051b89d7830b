"""Before the optimizer's step: what the step destroys and ``plan_rewiring`` reads after it."""

from collections.abc import Sequence

from torch import Tensor

from rewire.core.layer import Context, Layer, numel
from rewire.core.method import Method, budget, drop_count, due_fraction
from rewire.core.protocols import RanksTheNetwork, Samples
from rewire.core.ranks import ALONE
from rewire.core.validate import check_counts
from rewire.core.views import Captured, PartView


def capture(method: Method, layers: Sequence[Layer], ctx: Context) -> list[Captured]:
    """The layers as ``plan_rewiring`` needs them once the optimizer has stepped and the inactive gradients are cleared.

    Called just before the step. Copies the largest inactive gradients, no more of them than parts can ask for.
    """
    due = due_fraction(method, layers, ctx.step)
    views = [Captured(layer, method.signals) for layer in layers]
    # Under a constraint, the largest may be where nothing can be grown; a layer that another rank rewires goes there.
    if method.constraint is not None or (method.needs_whole_layers and ctx.ranks is not ALONE):
        for view in views if due is not None else ():
            for signal in method.captured_signals:
                view.store_all(signal)
        return views
    n = drop_count(method, views, ctx)
    if n is None or not method.captured_signals:
        return views
    rise = max(budget(method, views, ctx.step) - sum(view.nnz for view in views), 0)
    if n == rise == 0:
        return views
    lost, limits = _limits(method, views, n, rise)
    readable = [PartView(layer, method.allocate) for layer in layers]
    samples = _sample(method, views, ctx)
    for signal in method.captured_signals:
        if samples is not None and signal in method.grow.signals:
            for view, positions in zip(views, samples, strict=True):
                view.store_sample(signal, positions)
            if signal not in method.allocate.signals:
                continue
        tops = None
        if isinstance(method.allocate, RanksTheNetwork) and signal in method.allocate.signals:
            tops = method.allocate.candidates(readable, sum(lost) + rise, ctx)
        if tops is None:
            tops = [view.top_inactive(signal, k) for view, k in zip(views, limits, strict=True)]
        for view, top, limit in zip(views, tops, limits, strict=True):
            view.store_top(signal, top, limit)
    return views


def _sample(method: Method, layers: Sequence[Layer], ctx: Context) -> list[Tensor] | None:
    """The positions of each layer among which the growth chooses, if it does not choose among all."""
    if not isinstance(method.grow, Samples):
        return None
    return [method.grow.sample(layer, index, ctx) for index, layer in enumerate(layers)]


def _limits(method: Method, layers: Sequence[Layer], n: int, rise: int) -> tuple[list[int], list[int]]:
    """The largest numbers of weights that each layer may lose and get, known before the optimizer's step.

    ``rise``: by how many weights a rising density enlarges the network; they may all go to one layer.
    """
    lost = (
        check_counts(f"`most` of drop={method.drop!r}", method.drop.most(layers, n), layers) if n else [0] * len(layers)
    )
    if rise:
        return lost, [sum(lost) + rise] * len(layers)
    room = [
        numel(layer) - layer.nnz + (k if method.regrow_dropped else 0) for layer, k in zip(layers, lost, strict=True)
    ]
    return lost, check_counts(f"`most` of allocate={method.allocate!r}", method.allocate.most(lost, room), layers)
