"""Refuses the steps of optimizers that train sparse weights and that no rewirer follows.

They would step without its hooks: in the masked store they may move weights that do not exist, in both no step is
counted, and no rewiring happens. One hook for all optimizers looks at each of them once.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rewire.rewirer.closures import closure_in
from rewire.rewirer.running_steps import RunningSteps
from rewire.stores.optimizer.optimizers import trained_by
from rewire.stores.protocol import StoredLayer


class Followed(Protocol):
    """The optimizers that a rewirer follows or has followed, and those of their steps that are under way."""

    followed: weakref.WeakSet[torch.optim.Optimizer]
    running: RunningSteps


Signature = tuple[int, ...]

_lock = threading.Lock()
# Both weakly: a layer lives as long as its weight, also where nobody has kept the rewirer.
_watched: list[tuple[weakref.ref[StoredLayer], weakref.ref[Followed]]] = []
_changes = 0  # how often that list has changed
_innocent: weakref.WeakKeyDictionary[torch.optim.Optimizer, Signature] = weakref.WeakKeyDictionary()
_registered = False


def watch(layers: Iterable[StoredLayer], followed: Followed) -> None:
    """Let only these optimizers train these layers from now on."""
    global _registered
    layers = list(layers)
    _replace(layers, [(weakref.ref(layer), weakref.ref(followed)) for layer in layers])
    if not _registered:
        _registered = True
        register_optimizer_step_pre_hook(_before_any_step)


def unwatch(layers: Iterable[StoredLayer]) -> None:
    """Let any optimizer train these layers again."""
    _replace(layers, [])


def _replace(
    layers: Iterable[StoredLayer], entries: list[tuple[weakref.ref[StoredLayer], weakref.ref[Followed]]]
) -> None:
    global _watched, _changes
    gone = {id(layer) for layer in layers}
    with _lock:
        kept = [entry for entry in _watched if (layer := entry[0]()) is not None and id(layer) not in gone]
        _watched, _changes = kept + entries, _changes + 1


def _before_any_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():  # a refusal would break the graph of every compiled optimizer
        return
    signature = _signature(optimizer)
    if _innocent.get(optimizer) != signature:
        if _refused(optimizer, has_closure=closure_in(optimizer, args, kwargs) is not None):
            return
        _innocent[optimizer] = signature


def _signature(optimizer: torch.optim.Optimizer) -> Signature:
    """Changes when the optimizer gets other parameters, or any rewirer other layers or optimizers."""
    signature = [_changes]
    for group in optimizer.param_groups:
        parameters = group["params"]
        signature += (id(parameters), len(parameters))
    return tuple(signature)


def _refused(optimizer: torch.optim.Optimizer, has_closure: bool) -> bool:
    """Raise if the step would move sparse weights; whether it could have, had they any gradient."""
    ours = trained_by(optimizer)
    trained = [(layer, followed()) for ref, followed in _watched if (layer := ref()) and id(layer.parameter) in ours]
    if not trained:
        return False
    related = {id(relative) for relative in _wrapped_by(optimizer)}
    suspects = [layer for layer, followed in trained if not (followed and _is_known(optimizer, related, followed))]
    if not suspects:
        return False
    if any(followed is not None and followed.running.exist() for _, followed in trained):
        return True
    moving = [layer for layer in suspects if _may_move(layer.parameter, has_closure)]
    if not moving:
        return True
    name = type(optimizer).__name__
    raise RuntimeError(
        f"this {name} is about to step on the sparse weight of {moving[0].name}, but its rewirer follows "
        "another optimizer: it would count no step, rewire no more and let weights move that do not exist. Call "
        "rewirer.follow(optimizer) once, before the first step of the new optimizer, or rewirer.remove() to train a "
        "plain dense model"
    )


def _is_known(optimizer: torch.optim.Optimizer, related: set[int], followed: Followed) -> bool:
    """Whether an optimizer is followed, wraps one that is, or is wrapped by one that is."""
    if any(id(other) in related for other in followed.followed):
        return True
    return any(optimizer is inner for other in list(followed.followed) for inner in _wrapped_by(other))


def _wrapped_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """An optimizer and all that it keeps in its attributes, whatever their names, also in lists and dictionaries."""
    waiting, seen = [optimizer], {id(optimizer)}
    while waiting:
        yield (current := waiting.pop())
        for value in list(vars(current).values()):
            values = list(value.values()) if isinstance(value, dict) else value
            candidates = values if isinstance(values, (list, tuple)) else [values]
            inner = [
                candidate
                for candidate in candidates
                if isinstance(candidate, torch.optim.Optimizer) and id(candidate) not in seen
            ]
            seen.update(map(id, inner))
            waiting += inner


def _may_move(parameter: Tensor, has_closure: bool) -> bool:
    """Whether a parameter has a gradient, or a closure may compute one.

    ``torch.distributed.checkpoint`` steps with gradients of zero, to see what state an optimizer has.
    """
    if has_closure and parameter.requires_grad:
        return True
    return parameter.grad is not None and bool(parameter.grad.any())
