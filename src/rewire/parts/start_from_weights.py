"""Starts that keep weights that exist already: the largest, those that are not zero, or those of a given topology."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import where_true
from rewire.core.layer import Context, LayerSpec
from rewire.core.protocols import Rule
from rewire.core.state_names import MASK_SUFFIX, POSITIONS_SUFFIX
from rewire.core.topology import joint_topk_masks, topk_mask


@dataclass(frozen=True)
class Magnitude:
    """The largest weights: of each layer, as many as a rule gives it, or of the whole network if there is no rule.

    For a network that is trained already. Network-wide, every layer keeps at least its largest weight.
    """

    rule: Rule | None = None
    reads_weights: ClassVar[bool] = True

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Rank the magnitudes; of equal ones the first are taken."""
        return largest(specs, [weight.abs() for weight in dense_weights(specs, ctx, self)], n, self.rule)


@dataclass(frozen=True)
class Nonzero:
    """The weights that are not zero: ``sparsify`` after ``remove`` keeps the topology."""

    gives_positions: ClassVar[bool] = True

    def positions(self, specs: Sequence[LayerSpec], ctx: Context) -> list[Tensor]:
        """Where they are."""
        return [where_true(weight != 0).cpu() for weight in dense_weights(specs, ctx, self)]

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Count them; the method's density must allow exactly as many."""
        positions = self.positions(specs, ctx)
        refuse_other_budget(positions, specs, n, "of the model's weights are not zero")
        return positions


class Given:
    """A topology that is given: a bool mask or the flat positions of each layer by name, or another model.

    Of a model the masks, the positions of packed layers, or else the weights that are not zero are taken, at once: what
    happens to the model later has no effect. Layers of the model that are not sparse here are ignored.

    >>> Given({"0": torch.tensor([[True, False], [False, True]]), "2": torch.tensor([0, 3, 5])})
    Given('2 layers, 5 weights, 3bb38626e580')
    """

    gives_positions: ClassVar[bool] = True

    def __init__(self, topology: Mapping[str, Tensor] | nn.Module) -> None:
        self._complete = not isinstance(topology, nn.Module)  # whether all names must be those of sparse layers
        tensors = _of_model(topology) if isinstance(topology, nn.Module) else topology
        self._positions = {name: _positions(name, tensor) for name, tensor in tensors.items()}
        self._shapes = {name: tensor.shape for name, tensor in tensors.items() if tensor.dtype == torch.bool}

    def __repr__(self) -> str:  # identifies the topology in a checkpoint without listing it
        digest = hashlib.blake2b(digest_size=6)
        for name, positions in sorted(self._positions.items()):
            digest.update(f"{name}/{len(positions)}/".encode() + positions.numpy().tobytes())
        count = sum(map(len, self._positions.values()))
        return f"Given('{len(self._positions)} layers, {count} weights, {digest.hexdigest()}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def positions(self, specs: Sequence[LayerSpec], ctx: Context) -> list[Tensor]:
        """Find each layer by its name."""
        missing = [spec.name for spec in specs if self._name(spec) is None]
        if missing:
            raise ValueError(
                f"the start gives no topology for {', '.join(missing)}: add it, or leave the layer dense with exclude="
            )
        unknown = set(self._positions) - {self._name(spec) for spec in specs}
        if unknown and self._complete:
            names = ", ".join(spec.name for spec in specs)
            raise ValueError(f"the start names {', '.join(sorted(unknown))}; the sparse layers are {names}")
        for spec in specs:
            shape = self._shapes.get(str(self._name(spec)), spec.shape)
            if shape != spec.shape:
                raise ValueError(f"the mask of {spec.name} has shape {tuple(shape)}, its weight {tuple(spec.shape)}")
        return [self._positions[str(self._name(spec))] for spec in specs]

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """The same; the method's density must allow exactly as many weights as are given."""
        positions = self.positions(specs, ctx)
        refuse_other_budget(positions, specs, n, "weights are given by the start")
        return positions

    def _name(self, spec: LayerSpec) -> str | None:
        names = (spec.name, f"{spec.name}.weight")
        return next((name for name in names if name in self._positions), None)


def largest(specs: Sequence[LayerSpec], scores: Sequence[Tensor], n: int, rule: Rule | None) -> list[Tensor]:
    """The positions of the ``n`` largest scores: by layer, as many as the rule gives it, or over the whole network."""
    flat = [score.detach().flatten() for score in scores]
    if rule is not None:
        masks = [topk_mask(values, k) for values, k in zip(flat, rule(specs, n, [1] * len(specs)), strict=True)]
    else:
        for i, values in enumerate(flat):
            flat[i] = values.index_fill(0, values.argmax(), float("inf"))  # no layer is left without a weight
        masks = joint_topk_masks(flat, n)
    return [where_true(mask).cpu() for mask in masks]


def dense_weights(specs: Sequence[LayerSpec], ctx: Context, start: object) -> list[Tensor]:
    """The weights of the model that is made sparse; raises if there are none to read."""
    if ctx.weights is None:
        raise ValueError(f"start={start!r} reads the model's weights: only sparsify can call it")
    weights = [weight.detach() for weight in ctx.weights]
    for spec, weight in zip(specs, weights, strict=True):
        if weight.is_meta:
            raise ValueError(
                f"start={start!r} reads the weights of {spec.name}, which is on the meta device and has none"
            )
        if not bool(weight.isfinite().all()):
            raise ValueError(f"start={start!r} reads the weights of {spec.name}, and some of them are not finite")
    return weights


def refuse_other_budget(positions: Sequence[Tensor], specs: Sequence[LayerSpec], n: int, what: str) -> None:
    """Raise, with the density that fits, unless there are ``n`` positions."""
    count, total = sum(map(len, positions)), sum(spec.numel for spec in specs)
    if count != n:
        raise ValueError(
            f"{count} of {total} {what}, but the method's density at step 0 allows {n}: pass density="
            f"{fitting_density(count, total)}"
        )


def fitting_density(count: int, total: int) -> str:
    """The shortest decimal number that gives exactly ``count`` of ``total`` weights.

    >>> fitting_density(1, 3), fitting_density(123, 1000)
    ('0.3', '0.123')
    """
    return next(text for digits in range(1, 18) if round(float(text := f"{count / total:.{digits}g}") * total) == count)


def _positions(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"the start gives {tensor!r} for {name}: expected a bool mask, or positions as integers")
    if tensor.dtype == torch.bool:
        return where_true(tensor.detach().cpu())
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() != 1:
        what = f"a tensor of {str(tensor.dtype).removeprefix('torch.')} and shape {tuple(tensor.shape)}"
        raise TypeError(f"the start gives {what} for {name}: expected a bool mask, or a list of positions as integers")
    return tensor.detach().cpu().long().sort().values


def _of_model(model: nn.Module) -> dict[str, Tensor]:
    """A bool mask, or positions, for every weight of two and more dimensions."""
    state = {_plain_name(key): tensor.detach() for key, tensor in model.state_dict().items()}
    if any(hasattr(tensor, "_local_tensor") for tensor in state.values()):
        raise ValueError("the model given as start is sharded: give the masks of its layers, gathered, by name")
    topologies = {}
    for name, tensor in state.items():
        if name + MASK_SUFFIX in state:
            topologies[name] = state[name + MASK_SUFFIX]
        elif name + POSITIONS_SUFFIX in state:
            topologies[name] = state[name + POSITIONS_SUFFIX]
        elif tensor.dim() >= 2 and tensor.is_floating_point():
            topologies[name] = tensor != 0
    return topologies


def _plain_name(key: str) -> str:
    """A key of a ``state_dict`` without the names of wrappers: ``torch.compile``, and data parallelism."""
    return key.replace("_orig_mod.", "").removeprefix("module.")
