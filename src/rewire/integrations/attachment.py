"""What the callbacks share: attaching a rewirer when the trainer is ready, and moving it to the trainer's optimizer.

Trainers load a checkpoint's weights before they create an optimizer, and the masks must exist by then. So a model can
be made sparse with a placeholder optimizer that never steps; the rewirer moves to the real one once there is one.
"""

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rewire.attach import sparsify
from rewire.core.method import Method
from rewire.film.recorder import Recorder, record
from rewire.model.select import unwrap
from rewire.model.state_names import holds_topology
from rewire.rewirer.rewirer import Rewirer
from rewire.stores.optimizer.optimizers import Given


class ModelHook:
    """A hook on one model. Copies of the model, and what is unpickled of it, have it too, but there it does nothing."""

    def __init__(self, model: nn.Module | None, function: Callable[..., None] | None) -> None:
        self._model, self._function = None if model is None else weakref.ref(model), function

    def __call__(self, module: nn.Module, *args: Any) -> None:
        """Call the function if the hook sits on the model that it was made for."""
        if self._function is not None and self._model is not None and self._model() is module:
            self._function(module, *args)

    def __deepcopy__(self, _memo: object) -> "ModelHook":
        return ModelHook(None, None)

    def __reduce__(self) -> Any:
        return ModelHook, (None, None)


class Attachment:
    """The method and the options of ``sparsify``, the rewirer that they result in, and its film if one is wanted."""

    def __init__(self, method: Method, options: dict[str, Any], film: str | Path | None = None) -> None:
        if not isinstance(method, Method):
            raise TypeError(
                f"method must be a rewire.Method, not {method!r} (call the method: rewire.ggr(density=...))"
            )
        self.method, self.options, self.film_folder = method, options, film
        self.rewirer: Rewirer | None = None
        self.when_sparse: Callable[[], None] | None = None  # called after the model was made sparse
        self._watched: nn.Module | None = None
        self._film: Recorder | None = None

    def is_attached_to(self, model: nn.Module) -> bool:
        """Whether this very model has been made sparse already."""
        return self.rewirer is not None and not self.rewirer.removed and self.rewirer.model is unwrap(model)

    def prepare(self, model: nn.Module) -> None:
        """Make the model sparse before there is an optimizer, so that a checkpoint with masks can be loaded."""
        if not self.is_attached_to(model):
            self._sparsify(model, _placeholder(unwrap(model)))

    def attach(self, model: nn.Module, optimizer: Given) -> Rewirer:
        """Make the model sparse, unless it is already, and rewire it at the steps of this optimizer, or of several."""
        if self.rewirer is not None and self.is_attached_to(model):
            self.rewirer.follow(optimizer)
            return self.rewirer
        return self._sparsify(model, optimizer)

    def _sparsify(self, model: nn.Module, optimizer: Given) -> Rewirer:
        self.rewirer = sparsify(model, optimizer, self.method, **self.options)
        if self.when_sparse is not None:
            self.when_sparse()
        return self.rewirer

    def watch(self, model: nn.Module) -> None:
        """Make the model sparse as soon as weights with masks are loaded into it."""
        if self._watched is model:
            return
        self._watched = model

        def before_loading(module: nn.Module, state: dict[str, Any], *_: object) -> None:
            if holds_topology(state):
                self.prepare(module)

        model.register_load_state_dict_pre_hook(ModelHook(model, before_loading))

    def start_film(self) -> None:
        """Record the rewirings from now on, if a folder was given. The rewirer's state must be loaded by then."""
        self.stop_film()
        if self.film_folder is not None and self.rewirer is not None:
            self._film = record(self.rewirer, self.film_folder)

    def log_to_film(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the film, if one is being recorded."""
        if self._film is not None and metrics:
            self._film.log(**metrics)

    def stop_film(self) -> None:
        """End the recording, if there is one."""
        if self._film is not None:
            self._film.close()
            self._film = None

    def densities(self) -> dict[str, float]:
        """Metrics to log: the density of the network and of every layer."""
        if self.rewirer is None:
            return {}
        layers = {f"density/{layer.name}": layer.density for layer in self.rewirer.layers}
        return {"density": self.rewirer.density} | layers


def renew_averages(callbacks: Iterable[object], model: nn.Module, rewirer: Rewirer) -> None:
    """Copies of the model that callbacks made before it was sparse are replaced by averages that follow it.

    Trainers let callbacks copy the model before there is an optimizer. Such an average holds nothing yet but the values
    that the model started with.
    """
    for callback in callbacks:
        for name, value in list(vars(callback).items()):
            if isinstance(value, AveragedModel) and type(value.module) is type(model):
                value.module = _copy_like(model, value.module)
                rewirer.register_average(value)
            elif type(value) is type(model) and value is not model:
                setattr(callback, name, _copy_like(model, value))
                rewirer.register_average(getattr(callback, name))


def _copy_like(model: nn.Module, other: nn.Module) -> nn.Module:
    """A copy of the model on the device and in the mode of another one."""
    device = next(other.parameters()).device
    return copy.deepcopy(model).to(device).train(other.training)


def _placeholder(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer over all parameters that has no state and never steps."""
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.empty(0))], lr=0.0)  # SGD needs at least one
