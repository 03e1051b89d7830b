"""Where the values of a packed weight go when weights are dropped and grown."""

import torch
from torch import Tensor

from rewire.core.dense_ops import where_true
from rewire.core.topology import Edit


class Rearrangement:
    """Moves anything with one entry for each active weight from the old positions to the new ones.

    >>> edit = Edit(drop=torch.tensor([3]), grow=torch.tensor([1, 9]), value=torch.zeros(2))
    >>> Rearrangement(torch.tensor([0, 3, 5]), edit)(torch.tensor([10.0, 20.0, 30.0]))
    tensor([10.,  0., 30.,  0.])
    """

    def __init__(self, before: Tensor, edit: Edit) -> None:
        survives = torch.ones(len(before), dtype=torch.bool, device=before.device)
        survives[torch.searchsorted(before, edit.drop.to(before.device))] = False
        self._survivors = where_true(survives)  # indices into the old values
        grown, self._order = edit.grow.to(before.device).sort()
        # Both lists are sorted: a grown weight goes behind the survivors and the grown weights of lower position.
        ahead = torch.arange(len(grown), device=before.device)
        self.grown_slots = torch.searchsorted(before[self._survivors], grown) + ahead  # indices into the new values
        is_survivor = torch.ones(len(self._survivors) + len(grown), dtype=torch.bool, device=before.device)
        is_survivor[self.grown_slots] = False
        self._survivor_slots = where_true(is_survivor)  # indices into the new values
        self._size = len(is_survivor)

    def __call__(self, old: Tensor, at_grown: Tensor | None = None) -> Tensor:
        """The entries at the new positions; those of grown weights are ``at_grown``, or zero."""
        new = old.new_zeros(self._size)
        new[self._survivor_slots] = old[self._survivors]
        if at_grown is not None:
            new[self.grown_slots] = at_grown.to(old)[self._order]
        return new
