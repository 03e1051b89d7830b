"""Weights and learning rates scaled by the density of each layer, so that both act as they do in the dense network.

A unit of a layer of density ``d`` sums ``d`` times as many terms as in the dense layer. Its output keeps its scale if
the variance of the weights is divided by ``d``, and the change of its output in a step if the learning rate is.
"""

from collections.abc import Sequence
from typing import Any

import torch

from rewire.rewirer.rewirer import Rewirer


def density_groups(rewirer: Rewirer, base: float = 1.0) -> list[list[dict[str, Any]]]:
    """The parameter groups of each optimizer, with a group of its own for each sparse layer.

    Its learning rate is ``lr * base / density``: that of its present group, which suits a network of density ``base``,
    for the density that the layer has now. All other options are copied. Build new optimizers from the groups and give
    them to ``rewirer.follow``.
    """
    _refuse(rewirer, base)
    layers = {id(layer.parameter): layer for layer in rewirer.layers}
    scaled: list[list[dict[str, Any]]] = []
    for optimizer in rewirer.store.optimizers.all:
        groups = []
        for group in optimizer.param_groups:
            sparse = [place for place, parameter in enumerate(group["params"]) if id(parameter) in layers]
            others = [place for place in range(len(group["params"])) if place not in sparse]
            groups += [_part(group, others)] if others else []
            for place in sparse:
                part = _part(group, [place])
                density = layers[id(group["params"][place])].density
                groups.append(part | {"lr": part["lr"] * base / density})
        scaled.append(groups)
    return scaled


def _part(group: dict[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Some parameters of a group, with its options and, if it has them, their names."""
    options = {name: value for name, value in group.items() if name != "initial_lr"}
    listed = {name: group[name] for name in ("params", "param_names") if name in group}
    return options | {name: [values[place] for place in places] for name, values in listed.items()}


@torch.no_grad()
def scale_weights(rewirer: Rewirer, base: float = 1.0) -> None:
    """Multiply the weights of each sparse layer by ``sqrt(base / density)``.

    For weights that were drawn for a network of density ``base``, before training. Not after
    ``sparsify(..., init="fan_in")``, which draws for the connections that exist.
    """
    _refuse(rewirer, base)
    if rewirer.step:
        raise ValueError(f"the network has made {rewirer.step} steps: scale its weights before training")
    for layer in rewirer.layers:
        layer.parameter.mul_((base / layer.density) ** 0.5)


def _refuse(rewirer: Rewirer, base: float) -> None:
    if rewirer.removed:
        raise ValueError("the Rewirer was removed: the model has no densities any more")
    if not 0 < base <= 1:
        raise ValueError(f"base is the density for which the settings were made, in (0, 1], not {base!r}")
