"""A packed model that runs a single sample in one native call.

Layer by layer, calling them from Python would take longer than computing them. Where that is not possible (a module
that has no step, several inputs, a hook that watches) the model runs layer by layer, as it does on larger batches.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire.inference.lower import NoStepError, steps_of
from rewire.kernels.batch import ops
from rewire.kernels.library import native
from rewire.kernels.sample.program import Program
from rewire.nn.hwcn import add_relu, is_alone

SHAPES = 8  # of samples whose programs are kept, with memory for all their maps


class PackedTracer(fx.Tracer):
    """Looks into no sum: it is one step."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(add_relu,))


class PackedGraph(fx.GraphModule):
    """A graph that runs a single sample at once where it can."""

    one_sample: "OneSample | None" = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The graph's result."""
        y = _at_once(self, args[0]) if len(args) == 1 and not kwargs else None
        return super().__call__(*args, **kwargs) if y is None else y

    def __reduce__(self) -> Any:
        """For pickle, which would make a plain graph of it."""
        return _restored, super().__reduce__()


def _restored(make: Callable[..., fx.GraphModule], given: tuple[Any, ...]) -> PackedGraph:
    plain = make(*given)
    model = PackedGraph(plain, plain.graph)
    model.__dict__.update(plain.__dict__)  # also what the graph does not use
    return model


def _at_once(model: PackedGraph, x: Any) -> Tensor | None:
    """The result for one sample; nothing if the model has to run layer by layer."""
    if not isinstance(x, Tensor) or not ops.is_eager(x) or not ops.is_fast(x) or x.dim() not in (2, 4):
        return None
    if len(x) != 1 or torch.is_autocast_enabled("cpu"):
        return None
    if torch.is_grad_enabled() and x.requires_grad:
        return None
    known = model.one_sample
    if known is None or not known.is_current(model):
        known = model.one_sample = OneSample(model)
    return known.run(model, x) if known.is_unwatched(model) else None


class OneSample:
    """The programs of a model, and what they were made of: the entries of its dictionaries."""

    def __init__(self, model: PackedGraph) -> None:
        self.code = model.code
        self.programs: dict[torch.Size, _Prepared | None] = {}  # by the sample's shape; None: there can be none
        self.modules: list[nn.Module] = []  # those that would be called
        self.entries: list[tuple[dict[str, Any], str, object]] = []
        self.tensors: list[tuple[Tensor, int, torch.Size, int]] = []
        for path in dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op == "call_module"):
            module: nn.Module = model
            for name in path.split("."):
                self.entries.append((module._modules, name, module.get_submodule(name)))
                module = module.get_submodule(name)
            self.modules.append(module)
            for entries in (module._parameters, module._buffers):
                for name, one in entries.items():
                    self.entries.append((entries, name, one))
                    if one is not None:
                        self.tensors.append((one, one.data_ptr(), one.shape, ops.writes(one)))

    def __reduce__(self) -> Any:
        """A copy of the model, or a file, begins without."""
        return _nothing, ()

    # These two are asked before every sample, so they are plain loops: half the time of `all`.

    def is_current(self, model: PackedGraph) -> bool:
        """Whether the model is still what the programs were made of."""
        if model.code is not self.code:
            return False
        for entries, name, one in self.entries:
            if entries.get(name) is not one:
                return False
        for tensor, place, shape, writes in self.tensors:
            if tensor.data_ptr() != place or tensor.shape != shape or ops.writes(tensor) != writes:
                return False
        return True

    def is_unwatched(self, model: PackedGraph) -> bool:
        """Whether nobody can tell that the modules are not called: no hooks, no training, no gradients."""
        if model.training or not is_alone(model):
            return False
        for module in self.modules:
            if module.training or module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
                return False
        return not torch.is_grad_enabled() or not any(one[0].requires_grad for one in self.tensors)

    def run(self, model: PackedGraph, x: Tensor) -> Tensor | None:
        """The result for a sample, if there is a program for its shape."""
        if x.shape not in self.programs:
            for oldest in list(self.programs)[: -SHAPES + 1]:
                self.programs.pop(oldest, None)
            try:
                self.programs[x.shape] = _Prepared(model, x)
            except NoStepError:
                self.programs[x.shape] = None
        prepared = self.programs.get(x.shape)
        return None if prepared is None else prepared.run(x)


def _nothing() -> None:
    return None


class _Prepared:
    """A program with memory for its maps, which one thread uses at a time."""

    def __init__(self, model: PackedGraph, x: Tensor) -> None:
        with torch.no_grad():
            steps, self.shape = steps_of(model, x)
        self.program = Program(steps)
        self.own, self.busy = x.new_zeros(self.program.size), threading.Lock()

    def run(self, x: Tensor) -> Tensor | None:
        """The result; nothing if another thread is just using the memory."""
        library = native()
        assert library is not None
        if not self.busy.acquire(blocking=False):
            return None
        try:
            y = x.new_empty(self.shape)
            self.program.run(library, x.contiguous(), y, self.own)
            return y
        finally:
            self.busy.release()
