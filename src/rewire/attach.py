"""``sparsify``: the one line that users add. It makes a model sparse and attaches a ``Rewirer`` to its optimizer."""

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

from rewire._lookup import choose
from rewire._torch import parameters_of
from rewire.core.layer import Context
from rewire.core.method import Method, Rewiring, density_bounds, first_positions
from rewire.core.validate import check_density
from rewire.distributed.dtensor import whole
from rewire.distributed.handshake import (
    Fingerprint,
    Peers,
    find_peers,
    given_peers,
    leave_out_of_ddp,
    refuse_store_across_ranks,
)
from rewire.model.kinds import is_conv_or_linear
from rewire.model.reachability import REMEDY, cut_layers
from rewire.model.select import Patterns, SelectedWeight, endpoints, find_layers, names_matching, units, unwrap
from rewire.model.trained import looks_trained
from rewire.parts.constrained_start import fit_start, start_budget
from rewire.parts.start_from_weights import fitting_density
from rewire.rewirer.refusals import refuse_missing_signals, refuse_unfit_weights, refuse_wrong_types
from rewire.rewirer.rewirer import Rewirer
from rewire.rewirer.state import checksum
from rewire.stores.masked import MaskedStore
from rewire.stores.optimizer.optimizers import Given, Optimizers
from rewire.stores.packed import PackedStore

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

STORES: dict[str, type[MaskedStore] | type[PackedStore]] = {kind.name: kind for kind in (MaskedStore, PackedStore)}


def sparsify(
    model: nn.Module,
    optimizer: Given,
    method: Method,
    *,
    store: str = "masked",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    keep_masked: Patterns | None = None,
    init: str | None = None,
    seed: int = 0,
    on_rewire: Callable[[Rewiring], None] | None = None,
    process_group: "ProcessGroup | None" = None,
) -> Rewirer:
    """Make a model sparse and keep it so while the optimizer trains it. The training loop does not change.

    ``optimizer``: the one that trains the model, or a list where several do: one step is then a step of each of them.
    ``store``: ``"masked"`` keeps dense weights and masks, for any layer and device; ``"packed"`` keeps and uses only
    the weights that exist, on the CPU, and draws layers made on the ``meta`` device without holding a dense weight.
    ``include`` / ``exclude``: name globs or module types; layers left out stay dense and outside the budget.
    ``keep_masked``: name globs or module types; the packed store keeps these layers masked. What stays dense or masked,
    and why, is in ``rewirer.left_out`` and ``rewirer.store.notes``, and in the table that ``print(rewirer)`` shows.
    The method's start says which weights exist at first. The default of most methods is random: of a network that is
    trained already it throws most away, with a warning. Choose ``start="magnitude"`` then, or ``start="nonzero"``.
    ``init="fan_in"``: redraw the weights for the connections that exist. ``on_rewire`` is called after each rewiring.
    ``process_group``: the ranks that train copies of a packed model, if DDP wraps it after ``sparsify``.

    >>> model = nn.Linear(4, 5, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> from rewire.methods import static
    >>> print(sparsify(model, optimizer, static(density=0.5)).nnz)
    10
    """
    refuse_wrong_types(model, optimizer, method, init)
    kind, optimizers = choose("store", store, STORES), Optimizers(optimizer)
    wrapped, model = model, unwrap(model)
    weights, left_out = find_layers(model, include, exclude)
    masked = names_matching("keep_masked", keep_masked, model) if keep_masked is not None else set()
    _refuse_unfit(kind, method, weights, masked, optimizers)
    fingerprint = Fingerprint.of(method, seed, kind, [weight.spec for weight in weights])
    peers = _agreeing_peers(wrapped, weights, fingerprint, process_group)
    context = _start_context(model, weights, seed)
    active = _first_positions(method, weights, context, peers)
    drawn = [_draw(weights[i], positions, init, context, i) for i, positions in enumerate(active)]
    _warn_if_thrown_away(model, weights, method, init, optimizers, active)
    stored = kind(model, weights, active, drawn, optimizers, peers.ranks, masked)
    _average_over(process_group, stored, model, peers)
    rewirer = Rewirer(model, stored, method, seed, left_out, on_rewire, peers)
    rewirer.check_signal = _warn_if_cut(model, weights, active)
    return rewirer


def _refuse_unfit(
    kind: type[MaskedStore] | type[PackedStore],
    method: Method,
    weights: Sequence[SelectedWeight],
    masked: Collection[str],
    optimizers: Optimizers,
) -> None:
    """Raise for what the method, the store and the optimizers cannot do with these weights; ``masked``: kept masked."""
    refuse_missing_signals(kind, method)
    refuse_unfit_weights(method, weights, optimizers)
    kind.refuse_optimizers(
        optimizers, {weight.spec.name: weight.parameter for weight in weights if weight.spec.name not in masked}
    )


def _average_over(
    group: "ProcessGroup | None", stored: MaskedStore | PackedStore, model: nn.Module, peers: Peers
) -> None:
    """Let the store average the gradients of its weights over ranks with copies of the model, and DDP ignore them."""
    if group is not None:
        stored.average_over(peers.copies[0], model.parameters())
        leave_out_of_ddp(model, [layer.parameter for layer in stored.layers], stored.resized)


def _agreeing_peers(
    wrapped: nn.Module, weights: Sequence[SelectedWeight], fingerprint: Fingerprint, group: "ProcessGroup | None"
) -> Peers:
    """The ranks that share these weights, if there are any; raises on all of them if they do not agree."""
    parameters, names = [weight.parameter for weight in weights], [weight.spec.name for weight in weights]
    if group is not None:
        peers = given_peers(group, wrapped, parameters, names)
        peers.verify_agreement(fingerprint)
        for parameter in parameters:  # as DDP does for the parameters that it is not told to ignore
            if not parameter.is_meta:
                peers.copies[0].broadcast(parameter.detach())
        return peers
    peers = find_peers(wrapped, parameters, names)
    if peers.exist:
        refuse_store_across_ranks(fingerprint)
        peers.verify_agreement(fingerprint)
    return peers


def _start_context(model: nn.Module, weights: Sequence[SelectedWeight], seed: int) -> Context:
    """What a start may read."""
    parameters = [weight.parameter for weight in weights]
    return Context(seed=seed, model=model, parameters=parameters, weights=_Weights(weights))


def _first_positions(method: Method, weights: Sequence[SelectedWeight], context: Context, peers: Peers) -> list[Tensor]:
    """Where the weights of each layer are at first."""
    specs = [weight.spec for weight in weights]
    n, density = _budget(method, weights), check_density(method.density, 0)
    if method.constraint is not None:
        n = start_budget(method.constraint, method.start, specs, density, n, context)
    active = first_positions(method, specs, n, context)
    if method.constraint is not None:
        active = fit_start(method.constraint, method.start, active, specs, density, context)
    # A start may have read another batch, or other weights, on each rank; one that is random alone depends on the seed.
    if peers.copies and not getattr(method.start, "is_random", False):
        peers.verify_topology(
            0, [weight.spec.name for weight in weights], [checksum(positions) for positions in active]
        )
    return active


class _Weights(Sequence[Tensor]):
    """The dense weights of the layers; a sharded one is gathered when it is read, by all ranks."""

    def __init__(self, weights: Sequence[SelectedWeight]) -> None:
        self._weights = weights

    def __len__(self) -> int:
        return len(self._weights)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [whole(weight.parameter.detach()) for weight in self._weights[index]]
        return whole(self._weights[index].parameter.detach())


def _budget(method: Method, weights: Sequence[SelectedWeight]) -> int:
    """How many weights the network starts with; there must be one for every layer even at the end."""
    total = sum(weight.spec.numel for weight in weights)
    at_first = check_density(method.density, 0)
    lowest = min(*density_bounds(method.density), at_first)
    first, fewest = (round(density * total) for density in (at_first, lowest))
    if fewest < len(weights):
        raise ValueError(
            f"density {lowest} leaves {fewest} weights for {len(weights)} layers ({total} weights when "
            f"dense): every layer needs at least one, so density must be at least "
            f"{fitting_density(len(weights), total)}"
        )
    return first


@torch.no_grad()
def _draw(one: SelectedWeight, positions: Tensor, init: str | None, context: Context, index: int) -> Tensor | None:
    """Values for the weights that exist, or ``None`` where they are those of the dense weight.

    ``init="fan_in"``: Kaiming-uniform for the connections that exist, bound ``sqrt(6 / fan_in)`` with each output's own
    fan-in. A weight on the meta device has no values yet: it is drawn as torch's layers draw theirs, its bias too.
    """
    if init is None and not one.parameter.is_meta:
        return None
    bound: Tensor | float = one.spec.matrix[1:].numel() ** -0.5
    if one.parameter.is_meta and (bias := parameters_of(one.module).get("bias")) is not None:
        uniform = torch.rand(bias.shape, generator=context.generator("bias", index), dtype=bias.dtype)
        torch.utils.swap_tensors(bias, nn.Parameter((2 * uniform - 1) * bound))
    if init == "fan_in":
        _, outputs = endpoints(one.spec, positions)
        bound = (6 / torch.bincount(outputs, minlength=units(one.spec)[1])[outputs]).sqrt()
    uniform = torch.rand(len(positions), generator=context.generator("init", index), dtype=torch.float64)
    return (2 * uniform - 1) * bound


def _warn_if_thrown_away(
    model: nn.Module,
    weights: Sequence[SelectedWeight],
    method: Method,
    init: str | None,
    optimizers: Optimizers,
    active: Sequence[Tensor],
) -> None:
    """Warn if a random start keeps only a part of what seems to be a trained network."""
    kept, total = sum(map(len, active)), sum(weight.spec.numel for weight in weights)
    if not getattr(method.start, "is_random", False) or init is not None or kept == total:
        return
    if looks_trained(model) or any(optimizers.have_trained(weight.parameter) for weight in weights):
        warnings.warn(
            f"the model seems to be trained, and start={method.start!r} keeps {kept / total:.0%} of its weights "
            "at random: start='magnitude' keeps the largest instead, start='nonzero' those that are not zero. If the "
            "trained values do not matter, init='fan_in' draws new ones",
            stacklevel=3,
        )


def _warn_if_cut(model: nn.Module, weights: Sequence[SelectedWeight], active: Sequence[Tensor]) -> bool:
    """Warn if no signal can pass; ``True`` if the topology cannot tell and the first gradient has to."""
    wired = {id(weight.parameter): (weight.spec, positions) for weight, positions in zip(weights, active, strict=True)}
    modules = [module for module in model.modules() if is_conv_or_linear(module)]
    wiring = {m: wired[id(w)] for m in modules if id(w := parameters_of(m).get("weight")) in wired}
    cut = cut_layers(model, wiring)
    if cut:
        warnings.warn(
            f"no signal passes through this start: it ends in {', '.join(cut)}. Gradients before that are exactly "
            f"zero, so only random growth could repair it, by chance. {REMEDY}",
            stacklevel=3,
        )
    return cut is None
