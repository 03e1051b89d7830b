"""What the callbacks share: a rewirer that is made when a trainer is ready for it, and follows its optimizers.

Trainers load a checkpoint's weights before they have an optimizer, and the masks must exist by then. So a model may be
made sparse under an optimizer that never steps; the rewirer turns to the real one as soon as there is one.
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
    """The method and the options of ``sparsify``, and the rewirer that they lead to."""

    def __init__(self, method: Method, options: dict[str, Any]) -> None:
        if not isinstance(method, Method):
            raise TypeError(
                f"method must be a rewire.Method, not {method!r} (call the method: rewire.ggr(density=...))"
            )
        self.method, self.options = method, options
        self.rewirer: Rewirer | None = None
        self._watched: nn.Module | None = None

    def holds(self, model: nn.Module) -> bool:
        """Whether this very model is sparse already."""
        return self.rewirer is not None and not self.rewirer.removed and self.rewirer.model is unwrap(model)

    def prepare(self, model: nn.Module) -> None:
        """Make the model sparse before there is an optimizer: masks exist, weights can be loaded."""
        if not self.holds(model):
            self.rewirer = sparsify(model, _stand_in(unwrap(model)), self.method, **self.options)

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Rewirer:
        """Make the model sparse, unless it is, and let the optimizer's steps rewire it."""
        if self.rewirer is not None and self.holds(model):
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
        """What a trainer logs: the density of the network and of every layer."""
        if self.rewirer is None:
            return {}
        layers = {f"density/{layer.name}": layer.density for layer in self.rewirer.layers}
        return {"density": self.rewirer.density} | layers


def _stand_in(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that holds all parameters, has no state and never steps."""
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.empty(0))], lr=0.0)  # SGD wants one at least
