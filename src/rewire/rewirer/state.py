"""The rewirer's part of a checkpoint: plain numbers, strings and tensors, refused when they belong to another run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rewire.core.method import Method, Rewiring
from rewire.core.ranks import Ranks, total
from rewire.distributed.dtensor import local
from rewire.stores.optimizer.optimizers import trained_by
from rewire.stores.protocol import Store, StoredLayer, no_gradient_arrived

FORMAT = 1


def history_state(history: Sequence[Rewiring]) -> dict[str, Any]:
    """The history as plain data; counts as one tensor, because a method may rewire at every step."""
    return {
        "step": [rewiring.step for rewiring in history],
        "fraction": [rewiring.fraction for rewiring in history],
        "counts": torch.tensor(
            [[rewiring.dropped, rewiring.grown, rewiring.regrown] for rewiring in history], dtype=torch.int64
        ),
    }


def history_from(state: dict[str, Any]) -> list[Rewiring]:
    """The history that ``history_state`` was made of."""
    return [
        Rewiring(step, fraction, *counts)
        for step, fraction, counts in zip(state["step"], state["fraction"], state["counts"].tolist(), strict=True)
    ]


def newborns_from(state: dict[str, Any]) -> set[str]:
    """The layers whose newborn weights wait for their first step; in older files, those of the last rewiring."""
    if "newborns" in state:
        return set(state["newborns"])
    if not state["history"]["step"] or state["history"]["step"][-1] != state["step"]:
        return set()
    _dropped, grown, _regrown = state["history"]["counts"][-1].tolist()
    return {name for name, count in zip(state["layers"], grown, strict=True) if count}


def compare_masks(layers: Sequence[StoredLayer], expected: Sequence[int], ranks: Ranks) -> None:
    """Raise if the model's masks are not those that the loaded state was saved with."""
    sums = checksums(layers, ranks)
    other = [layer.name for layer, have, want in zip(layers, sums, expected, strict=True) if have != want]
    if other:
        raise RuntimeError(
            f"the rewirer's state was loaded, but the masks of {', '.join(other)} are not those it was saved with: "
            "load the model's state_dict of the same checkpoint too"
        )


def checksum(positions: Tensor) -> int:
    """A number that tells two topologies apart.

    >>> checksum(torch.tensor([0, 3])) == checksum(torch.tensor([1, 2]))
    False
    """
    mixed = (positions + 1) * 0x9E3779B97F4A7C1  # wraps around, the same on every device
    return int((mixed ^ (mixed >> 29)).sum())


def checksums(layers: Sequence[StoredLayer], ranks: Ranks) -> list[int]:
    """The checksum of each layer's topology: a sum, so that it is the same however the layer is sharded."""
    sums = total(ranks, (checksum(layer.active()) for layer in layers))
    return [(layer_sum + (1 << 63)) % (1 << 64) - (1 << 63) for layer_sum in sums]


def is_trial_step(optimizer: torch.optim.Optimizer, layers: Sequence[StoredLayer], ranks: Ranks) -> bool:
    """Whether a step is not part of the training.

    ``torch.distributed.checkpoint`` steps a fresh optimizer once, with rates and gradients of zero, to see what state
    it will have.
    """
    if optimizer.state:
        return False
    rates = [group.get("lr", 1.0) for group in optimizer.param_groups]
    waits = any(isinstance(rate, Tensor) and rate.device.type != "cpu" for rate in rates)
    if waits or any(map(float, rates)):
        return False
    ours = trained_by(optimizer)
    mine = [layer for layer in layers if id(layer.parameter) in ours]
    if not mine:  # of several optimizers, one that trains no sparse layer
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        return all(grad is not None for grad in grads) and not any(
            total(ranks, [int(any(bool(local(grad).any()) for grad in grads if grad is not None))])
        )
    return all(layer.parameter.grad is not None for layer in mine) and no_gradient_arrived(mine, ranks)


def refuse_other(state: dict[str, Any], method: Method, store: Store, layers: Sequence[StoredLayer]) -> None:
    """Raise, with the names and shapes that differ, if the state is not of this method, store and model."""
    missing = {"format", "method", "store", "seed", "layers", "masks", "step", "due", "memory", "averages", "history"}
    missing -= set(state)
    if missing:
        raise ValueError(f"this is not a rewirer's state_dict: it has no {', '.join(sorted(missing))}")
    for what, have in (("format", FORMAT), ("store", store.name), ("method", repr(method))):
        if what == "store" and state[what] in store.reads:
            continue
        if state[what] != have:
            raise ValueError(f"the checkpoint's {what} differs:\n  checkpoint: {state[what]}\n  here:       {have}")
    saved = {name: tuple(shape) for name, shape in state["layers"].items()}
    here = {layer.name: tuple(layer.shape) for layer in layers}
    if saved != here:
        differing = sorted(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
        lines = [f"  {name}: checkpoint {saved.get(name, '-')}, here {here.get(name, '-')}" for name in differing]
        raise ValueError("the checkpoint is of another model:\n" + "\n".join(lines))
    kept = {layer.name: layer.shape for layer in layers if layer.average is not None}
    if kept != {name: average.shape for name, average in state["averages"].items()}:
        raise ValueError(f"the checkpoint has no momentum averages for {', '.join(kept)}")
