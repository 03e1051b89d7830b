"""What the callbacks share: attaching a rewirer when the trainer is ready, and moving it to the trainer's optimizer.

Trainers load a checkpoint's weights before they create an optimizer, and the masks must exist by then. So a model can
be made sparse with a placeholder optimizer that never steps; the rewirer moves to the real one once there is one.
"""

from typing import Any

import torch
from torch import nn

from rewire.attach import sparsify
from rewire.core.method import Method
from rewire.model.select import unwrap
from rewire.model.state_names import holds_topology
from rewire.rewirer.rewirer import Rewirer


class Attachment:
    """The method and the options of ``sparsify``, and the rewirer that they result in."""

    def __init__(self, method: Method, options: dict[str, Any]) -> None:
        if not isinstance(method, Method):
            raise TypeError(
                f"method must be a rewire.Method, not {method!r} (call the method: rewire.ggr(density=...))"
            )
        self.method, self.options = method, options
        self.rewirer: Rewirer | None = None
        self._watched: nn.Module | None = None

    def is_attached_to(self, model: nn.Module) -> bool:
        """Whether this very model has been made sparse already."""
        return self.rewirer is not None and not self.rewirer.removed and self.rewirer.model is unwrap(model)

    def prepare(self, model: nn.Module) -> None:
        """Make the model sparse before there is an optimizer, so that a checkpoint with masks can be loaded."""
        if not self.is_attached_to(model):
            self.rewirer = sparsify(model, _placeholder(unwrap(model)), self.method, **self.options)

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Rewirer:
        """Make the model sparse, unless it is already, and rewire it at the steps of this optimizer."""
        if self.rewirer is not None and self.is_attached_to(model):
            self.rewirer.follow(optimizer)
        else:
            self.rewirer = sparsify(model, optimizer, self.method, **self.options)
        return self.rewirer

    def watch(self, model: nn.Module) -> None:
        """Make the model sparse as soon as weights with masks are loaded into it."""
        if self._watched is model:
            return
        self._watched = model

        def before_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
            # Compared by identity: a copy of the model has this hook too.
            if module is model and holds_topology(state):
                self.prepare(module)

        model.register_load_state_dict_pre_hook(before_loading)

    def densities(self) -> dict[str, float]:
        """Metrics to log: the density of the network and of every layer."""
        if self.rewirer is None:
            return {}
        layers = {f"density/{layer.name}": layer.density for layer in self.rewirer.layers}
        return {"density": self.rewirer.density} | layers


def _placeholder(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer over all parameters that has no state and never steps."""
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.empty(0))], lr=0.0)  # SGD needs at least one
