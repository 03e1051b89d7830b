"""How a topology changes: what two of them share, and how many positions were ever active."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Overlap:
    """Weights of one topology that another has too."""

    before: int
    after: int
    both: int

    @property
    def kept(self) -> float:
        """The share of the weights before that are there after."""
        return self.both / self.before if self.before else 1.0

    @property
    def jaccard(self) -> float:
        """The share of all positions of either that both have: 1 if they are the same."""
        union = self.before + self.after - self.both
        return self.both / union if union else 1.0


def overlap(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Overlap]:
    """Layer by layer, from masks by name.

    >>> import torch
    >>> overlap({"a": torch.tensor([True, True, False])}, {"a": torch.tensor([True, False, True])})["a"]
    Overlap(before=2, after=2, both=1)
    """
    other = {n for n in before.keys() | after.keys() if n not in before or n not in after}
    other |= {n for n in before.keys() & after.keys() if before[n].shape != after[n].shape}
    if other:
        raise ValueError(f"the topologies are of different models: they differ in {', '.join(sorted(other))}")
    pairs = {name: (before[name].bool(), after[name].bool()) for name in before}
    return {name: Overlap(int(a.sum()), int(b.sum()), int((a & b).sum())) for name, (a, b) in pairs.items()}


class Exploration:
    """Counts the positions that were ever active; call ``add`` with the masks after every rewiring.

    >>> import torch
    >>> seen = Exploration()
    >>> seen.add({"a": torch.tensor([True, False, False, False])})
    >>> seen.add({"a": torch.tensor([False, True, False, False])})
    >>> seen.share
    0.5
    """

    def __init__(self) -> None:
        self.ever: dict[str, Tensor] = {}

    def add(self, masks: Mapping[str, Tensor]) -> None:
        """Note the positions that are active now."""
        for name, mask in masks.items():
            now = mask.detach().cpu().bool()
            self.ever[name] = now.clone() if name not in self.ever else self.ever[name] | now

    @property
    def positions(self) -> dict[str, int]:
        """How many positions of each layer were ever active."""
        return {name: int(mask.sum()) for name, mask in self.ever.items()}

    @property
    def share(self) -> float:
        """The share of all positions that were ever active (in-time over-parameterisation: Liu et al., 2021)."""
        return sum(self.positions.values()) / max(sum(mask.numel() for mask in self.ever.values()), 1)
