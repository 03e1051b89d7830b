"""A packed model that runs a single sample in one native call.

Layer by layer, calling them from Python would take longer than computing them. Where that is not possible (a module
that has no step, several inputs, a hook that watches) the model runs layer by layer, as it does on larger batches.
"""

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from rewire.kernels import ops
from rewire.kernels.library import native
from rewire.kernels.program import Program, Step
from rewire.kernels.single import MOST
from rewire.one_sample import NoStepError, steps_of
from rewire.stores.twins import is_alone

SHAPES = 8  # of samples whose programs are kept, with memory for all their maps


class PackedGraph(fx.GraphModule):
    """A graph that runs a single sample at once where it can."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The graph's result."""
        y = _at_once(self, args[0]) if len(args) == 1 and not kwargs else None
        return super().__call__(*args, **kwargs) if y is None else y

    def __reduce__(self) -> Any:
        """For pickle, which would make a plain graph of it."""
        return _restored, super().__reduce__()


def _restored(make: Callable[..., fx.GraphModule], given: tuple[Any, ...]) -> PackedGraph:
    plain = make(*given)
    return PackedGraph(plain, plain.graph)


# The programs of each model by its code and by the shape of the sample; ``None`` where there can be none.
_PROGRAMS: WeakKeyDictionary[fx.GraphModule, tuple[str, dict[torch.Size, "OneSample | None"]]] = WeakKeyDictionary()


def _at_once(model: PackedGraph, x: Any) -> Tensor | None:
    """The result for one sample; nothing if the model has to run layer by layer."""
    if not isinstance(x, Tensor) or x.dim() not in (2, 4) or len(x) != 1 or x.numel() >= MOST:
        return None
    if not (ops.is_eager(x) and ops.is_fast(x)) or torch.is_autocast_enabled("cpu"):
        return None
    if torch.is_grad_enabled() and x.requires_grad:
        return None
    code, kept = _PROGRAMS.get(model, ("", {}))
    if code is not model.code:
        _PROGRAMS[model] = model.code, (kept := {})
    found = kept.get(x.shape)
    if x.shape not in kept or (found is not None and not found.is_current()):
        if len(kept) >= SHAPES:
            kept.pop(next(iter(kept)))
        found = kept[x.shape] = _built(model, x)
    return None if found is None or not found.is_unwatched(model) else found.run(x)


def _built(model: PackedGraph, x: Tensor) -> "OneSample | None":
    try:
        with torch.no_grad():
            return OneSample(model, *steps_of(model, x))
    except NoStepError:
        return None


class OneSample:
    """A program with its memory, and what it was made of: the entries of the model's dictionaries."""

    def __init__(self, model: PackedGraph, steps: list[Step], shape: torch.Size) -> None:
        self.program, self.shape = Program(steps), shape
        self.own, self.busy = torch.zeros(self.program.size), threading.Lock()
        self.modules: list[tuple[dict[str, Any], str, nn.Module]] = []
        self.tensors: list[tuple[dict[str, Any], str, Tensor, int, int]] = []
        for path in (str(node.target) for node in model.graph.nodes if node.op == "call_module"):
            parent, _, name = path.rpartition(".")
            module = model.get_submodule(path)
            self.modules.append((model.get_submodule(parent)._modules, name, module))
            for entries in (module._parameters, module._buffers):
                self.tensors += [
                    (entries, key, one, one.data_ptr(), ops.writes(one))
                    for key, one in entries.items()
                    if one is not None
                ]

    # Both are asked before every sample, so they are plain loops: half the time of `all`.

    def is_current(self) -> bool:
        """Whether the model is still what the program was made of."""
        for entries, name, module in self.modules:
            if entries.get(name) is not module:
                return False
        for entries, name, tensor, place, version in self.tensors:
            if entries.get(name) is not tensor or tensor.data_ptr() != place or ops.writes(tensor) != version:
                return False
        return True

    def is_unwatched(self, model: PackedGraph) -> bool:
        """Whether nobody can tell that the modules are not called: no hooks, no training, no gradients."""
        if model.training or not is_alone(model):
            return False
        for _entries, _name, module in self.modules:
            if module.training or module._forward_hooks or module._forward_pre_hooks:
                return False
        return not torch.is_grad_enabled() or not any(one[2].requires_grad for one in self.tensors)

    def run(self, x: Tensor) -> Tensor | None:
        """The result; nothing if another thread is just using the program's memory."""
        library = native()
        assert library is not None
        if not self.busy.acquire(blocking=False):
            return None
        try:
            y = torch.empty(self.shape)
            self.program.run(library, x.contiguous(), y, self.own)
            return y
        finally:
            self.busy.release()
