"""``shrink``: a smaller model that computes the same, checked in float64 before it is returned."""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from rewire.shrinking.cut import MASK, cut, groups_left
from rewire.shrinking.graph import ShrinkError
from rewire.shrinking.plan import Plan, plan
from rewire.stores.convert import to_masked, to_packed
from rewire.stores.copies import unlinked_copy

TOLERANCE = 1e-9  # relative, in float64


@dataclass(frozen=True)
class Shrinkage:
    """What was removed: parameters before and after, the shapes of the layers, and the layers that are constants."""

    before: int
    after: int
    weights: tuple[int, int]  # those that exist, before and after
    layers: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # name, shape before, shape after
    dead: tuple[str, ...]
    difference: float  # largest, relative, between the two models in float64

    def __str__(self) -> str:
        rows = [("layer", "before", "after")]
        rows += [(name, "x".join(map(str, a)), "x".join(map(str, b))) for name, a, b in self.layers]
        rows += [("weights that exist", f"{self.weights[0]:,}", f"{self.weights[1]:,}")]
        rows += [("dense parameters", f"{self.before:,}", f"{self.after:,}")]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        return "\n".join([*lines, *([sentence] if (sentence := self.remark()) else [])])

    def remark(self) -> str:
        """What users should know, or nothing."""
        if self.dead:
            names = ", ".join(self.dead[:5]) + (f" and {len(self.dead) - 5} more" if len(self.dead) > 5 else "")
            return f"no signal passes {names}: constants, held by one channel each where others read them"
        return "nothing can be removed: every channel is used" if self.before == self.after else ""


def shrink(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    topology: Mapping[str, Tensor] | None = None,
    masks: bool = True,
    packed: bool = False,
) -> nn.Module:
    """A copy of the model without its empty neurons and unused inputs; in evaluation mode it computes the same.

    A neuron without inputs is a constant, which is carried through batch norm and activation into the biases of what
    follows. Which weights exist is read from the model's masks, or from ``topology``: bool masks by layer name, for
    models that have none. ``example`` is an input, or a tuple of all arguments. ``masks=False`` leaves the masks away.
    With ``packed=True`` the layers of the result hold the weights that exist and no others (see the packed store).

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = nn.init.zeros_(model[0].weight[1:2].detach())
    >>> topology = {"0": torch.tensor([[True, True], [False, False], [True, True]])}
    >>> shrink(model, torch.zeros(1, 2), topology=topology)[0]
    Linear(in_features=2, out_features=2, bias=True)
    """
    small, report = shrink_with_report(model, example, topology=topology, masks=masks, packed=packed)
    if remark := report.remark():
        warnings.warn(remark, stacklevel=2)
    return small


def shrink_with_report(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    topology: Mapping[str, Tensor] | None = None,
    masks: bool = True,
    packed: bool = False,
) -> tuple[nn.Module, Shrinkage]:
    """As ``shrink``, with what was removed; nothing is warned about."""
    if packed and not masks:
        raise ValueError(
            "masks=False leaves a plain model, packed=True one that holds its topology: choose one of them"
        )
    model = to_masked(model)
    arguments = example if isinstance(example, tuple) else (example,)
    exact = unlinked_copy(model).cpu().double().eval()
    arguments = tree_map_only(Tensor, _in_double, arguments)
    _set_masks(exact, topology)
    failure: Exception | None = None
    for fixed_shapes in (False, True):  # the second time nothing is removed across a reshape
        try:
            small, planned = _cut_to_a_fixed_point(exact, arguments, fixed_shapes)
            difference = _difference(exact, small, arguments)
            if packed:
                difference = max(difference, _difference(exact, to_packed(small), arguments))
        except ShrinkError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:  # the model's code asks for the sizes it had
            failure = error
            continue
        if difference > TOLERANCE:
            raise ShrinkError(
                f"the shrunk {type(model).__name__} differs from the original by {difference:.1e} relative in float64 "
                f"(at most {TOLERANCE:g} is allowed): it is not returned. Its forward may depend on sizes or on state"
            )
        report = _report(exact, small, planned, difference)
        made = _as_it_was(model, small, masks, packed)
        return (to_packed(made) if packed else made), report
    raise ShrinkError(f"the shrunk {type(model).__name__} does not run: {failure}") from failure


def _cut_to_a_fixed_point(model: nn.Module, example: tuple[Any, ...], fixed_shapes: bool) -> tuple[nn.Module, Plan]:
    """One plan is a fixed point by itself, except that a grouped layer of which one group is left has no groups."""
    first = planned = plan(model, example, _masks(model), fixed_shapes)
    small = copy.deepcopy(model)
    cut(small, planned)
    while any(one.groups > 1 and groups_left(small, one) == 1 for one in planned.wirings):
        planned = plan(small, example, _masks(small), fixed_shapes)
        cut(small, planned)
    return small, first


def _masks(model: nn.Module) -> dict[str, Tensor]:
    return {name.removesuffix(MASK): mask for name, mask in model.named_buffers() if name.endswith("weight" + MASK)}


def _set_masks(model: nn.Module, topology: Mapping[str, Tensor] | None) -> None:
    """Add the masks that were given; a weight outside its mask would be lost, so it is refused."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for layer, mask in (topology or {}).items():
        name = f"{layer}.weight" if layer else "weight"
        if name not in parameters or parameters[name].shape != mask.shape:
            have = tuple(parameters[name].shape) if name in parameters else "no such weight"
            raise ValueError(f"topology[{layer!r}] is of shape {tuple(mask.shape)}, the model has {have}")
        model.get_submodule(layer).register_buffer("weight" + MASK, mask.cpu().bool())
    for name, mask in _masks(model).items():
        if bool((parameters[name].detach().ne(0) & ~mask).any()):
            raise ShrinkError(
                f"{name} has values where its mask says that there is no weight: it was trained without its Rewirer. "
                "Leave the masks away, or set those values to zero"
            )


def _difference(model: nn.Module, small: nn.Module, example: tuple[Any, ...]) -> float:
    """The largest relative difference of the outputs on the example and on random inputs."""
    worst = 0.0
    with torch.no_grad():
        for arguments in _inputs(example):
            pairs = zip(tree_leaves(model(*arguments)), tree_leaves(small(*arguments)), strict=True)
            for one, other in pairs:
                if isinstance(one, Tensor):
                    worst = max(worst, _relative(one, other))
    return worst


def _relative(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        raise ValueError(f"its output is {tuple(other.shape)} instead of {tuple(one.shape)}")
    apart = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one.double() - other.double()).abs())
    scale = max(float(one.double().abs().nan_to_num(0, 0, 0).max()), 1e-3) if one.numel() else 1.0
    largest = float(apart.max()) if one.numel() else 0.0
    return largest / scale if largest == largest else float("inf")


def _inputs(example: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield example
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 10.0):
        yield tree_map_only(Tensor, partial(_random_like, scale, generator), example)


def _random_like(scale: float, generator: torch.Generator, x: Tensor) -> Tensor:
    return scale * torch.randn(x.shape, generator=generator, dtype=x.dtype) if x.is_floating_point() else x


def _in_double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def _as_it_was(model: nn.Module, small: nn.Module, masks: bool, packed: bool) -> nn.Module:
    """The types, devices and modes of the original; its masks too, or all of them to pack it by."""
    modules = dict(model.named_modules())
    for path, module in small.named_modules():
        like = modules[path]
        module.training = like.training
        first = next(iter(like._parameters.values()), None)
        for held, before in ((module._parameters, like._parameters), (module._buffers, like._buffers)):
            for name, tensor in held.items():
                template = before.get(name) if before.get(name) is not None else first
                if tensor is not None and template is not None and not name.endswith(MASK):
                    tensor.data = tensor.data.to(template.device, template.dtype)
        if "weight" + MASK in module._buffers and not packed and not (masks and "weight" + MASK in like._buffers):
            del module._buffers["weight" + MASK]
    return small


def _report(model: nn.Module, small: nn.Module, planned: Plan, difference: float) -> Shrinkage:
    after = dict(small.named_parameters())
    names = dict.fromkeys(wiring.weight for wiring in planned.wirings)
    shapes = {name: (tuple(one.shape), tuple(after[name].shape)) for name, one in model.named_parameters()}
    return Shrinkage(
        before=sum(one.numel() for one in model.parameters()),
        after=sum(one.numel() for one in small.parameters()),
        weights=(_existing(model, names), _existing(small, names)),
        layers=tuple((name.removesuffix(".weight"), *shapes[name]) for name in names),
        dead=tuple(name.removesuffix(".weight") for name in planned.dead),
        difference=difference,
    )


def _existing(model: nn.Module, names: Iterable[str]) -> int:
    """How many weights these layers have, by their masks; all of those without one."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return sum(int(tensors[n + MASK].sum()) if n + MASK in tensors else tensors[n].numel() for n in names)
