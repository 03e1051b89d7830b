"""What users change in a model after ``sparsify``: weights frozen, replaced or added. Said once, and left alone."""

import warnings
from collections.abc import Mapping, Sequence

from torch import nn

from rewire._torch import parameters_of
from rewire.distributed.dtensor import is_sharded
from rewire.model.select import candidates
from rewire.stores.protocol import StoredLayer


class ChangeWatcher:
    """Compares a model with what it was when it was made sparse; each change is reported once."""

    def __init__(self, model: nn.Module, layers: Sequence[StoredLayer], left_out: Mapping[str, str]) -> None:
        self.model, self.layers, self.left_out = model, layers, left_out
        self._reported: set[str] = set()

    def look(self) -> None:
        """Freeze layers whose weight is no longer trained or no longer ours, and name layers that came later."""
        present = set(self.model.modules())
        for layer in self.layers:
            tensors = parameters_of(layer.module).values()  # FSDP puts a gathered weight there while it computes
            replaced = not any(tensor is layer.parameter for tensor in tensors) and not is_sharded(layer.parameter)
            removed = layer.module not in present
            layer.frozen = removed or replaced or not layer.parameter.requires_grad
            if layer.frozen:
                how = "taken out of the model" if removed else "replaced" if replaced else "frozen"
                budget = ", but still counted in the budget" if removed else ""
                self.warn_once(
                    layer.name, f"the weight of {layer.name} was {how} after sparsify: it is no longer rewired{budget}"
                )
        known = {id(layer.parameter) for layer in self.layers}
        sharded = {layer.name for layer in self.layers if is_sharded(layer.parameter)}
        for candidate in candidates(self.model):
            added = candidate.parameter is not None and id(candidate.parameter) not in known
            if added and candidate.name not in {*self.left_out, *sharded}:
                self.warn_once(
                    candidate.name, f"{candidate.name} was added after sparsify: it stays dense and outside the budget"
                )

    def warn_once(self, key: str, sentence: str) -> None:
        """Warn, unless this was said before."""
        if key not in self._reported:
            self._reported.add(key)
            warnings.warn(sentence, stacklevel=3)
