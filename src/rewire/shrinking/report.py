"""What shrinking removed, as numbers and as a table."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from rewire.model.state_names import mask_name
from rewire.shrinking.plan import Plan


@dataclass(frozen=True)
class Shrinkage:
    """Parameters before and after, the shapes of the layers, and the layers that carry no signal."""

    before: int
    after: int
    weights: tuple[int, int]  # those that exist, before and after
    layers: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # name, shape before, shape after
    dead: tuple[str, ...]
    difference: float  # largest relative difference of the outputs in float64
    own_difference: float | None = None  # in the model's own precision; None if the original does not run in it
    zeros: int = 0  # exact zeros that were taken for weights, because their layers have no mask

    def __str__(self) -> str:
        rows = [("layer", "before", "after")]
        rows += [(name, "x".join(map(str, a)), "x".join(map(str, b))) for name, a, b in self.layers]
        rows += [("weights that exist", f"{self.weights[0]:,}", f"{self.weights[1]:,}")]
        rows += [("dense parameters", f"{self.before:,}", f"{self.after:,}")]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        return "\n".join([*lines, *([sentence] if (sentence := self.remark()) else [])])

    def remark(self) -> str:
        """A sentence about a result that users may not expect, or ``""``."""
        if self.dead:
            names = ", ".join(self.dead[:5]) + (f" and {len(self.dead) - 5} more" if len(self.dead) > 5 else "")
            return f"no signal passes {names}: their outputs are constant, and one channel of each is kept"
        if self.before != self.after:
            return ""
        if not self.zeros:
            return "nothing can be removed: every channel is used"
        return (
            f"nothing can be removed: every channel is used. {self.zeros:,} exact zeros in layers without a mask count "
            "as weights: pass topology='nonzero' if they are none"
        )


def report(model: nn.Module, small: nn.Module, plan: Plan, difference: float) -> Shrinkage:
    """Compare a model in float64 with the shrunk one."""
    before, after = dict(model.named_parameters()), dict(small.named_parameters())
    names = dict.fromkeys(use.weight for use in plan.layers)
    buffers = dict(model.named_buffers())
    return Shrinkage(
        before=sum(parameter.numel() for parameter in model.parameters()),
        after=sum(parameter.numel() for parameter in small.parameters()),
        weights=(_existing(model, names), _existing(small, names)),
        layers=tuple(
            (name.removesuffix(".weight"), tuple(before[name].shape), tuple(after[name].shape)) for name in names
        ),
        dead=tuple(name.removesuffix(".weight") for name in plan.dead),
        difference=difference,
        zeros=sum(int((before[name] == 0).sum()) for name in names if mask_name(name) not in buffers),
    )


def _existing(model: nn.Module, names: Iterable[str]) -> int:
    """How many weights these layers have by their masks; a layer without a mask has all."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    masks = {name: tensors.get(mask_name(name)) for name in names}
    return sum(tensors[name].numel() if mask is None else int(mask.sum()) for name, mask in masks.items())
