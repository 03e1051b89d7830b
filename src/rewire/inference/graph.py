"""``PackedGraph``: a packed model that runs a single sample in one native call.

On one sample, calling the layers from Python takes longer than computing them. Where one call is not possible (a
module that cannot be lowered, several inputs, a hook) the graph runs layer by layer, as it does on larger batches.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire._torch import buffers_of, children_of, has_forward_hooks, has_hooks, parameters_of, write_count
from rewire.inference.lower import NotLowerableError, lower
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.kernels.library import native
from rewire.kernels.sample.program import Program

MAX_PROGRAMS = 8  # of different input shapes; each holds memory for all of its activations


class PackedGraph(fx.GraphModule):
    """A traced model that runs a single sample in one native call where that is possible."""

    programs: "SamplePrograms | None" = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the model."""
        y = _run_one_sample(self, args[0]) if len(args) == 1 and not kwargs else None
        return super().__call__(*args, **kwargs) if y is None else y

    def __reduce__(self) -> Any:
        """Pickle as a ``PackedGraph``: the base class would come back as a plain ``fx.GraphModule``."""
        return _restore, super().__reduce__()


def _restore(rebuild: Callable[..., fx.GraphModule], args: tuple[Any, ...]) -> PackedGraph:
    graph_module = rebuild(*args)
    model = PackedGraph(graph_module, graph_module.graph)
    model.__dict__.update(graph_module.__dict__)  # attributes that the graph does not use
    return model


def _run_one_sample(model: PackedGraph, x: Any) -> Tensor | None:
    """The output for one sample from one native call; ``None`` if the model has to run layer by layer."""
    if not isinstance(x, Tensor) or not is_eager(x) or not runs_native(x) or x.dim() not in (2, 4):
        return None
    if len(x) != 1 or torch.is_autocast_enabled("cpu"):
        return None
    if torch.is_grad_enabled() and x.requires_grad:
        return None
    programs = model.programs
    if programs is None or not programs.are_current(model):
        programs = model.programs = SamplePrograms(model)
    return programs.run(model, x) if programs.may_skip_modules(model) else None


class SamplePrograms:
    """The programs of a model by input shape, and what they were made from, to notice when the model changes."""

    def __init__(self, model: PackedGraph) -> None:
        self.by_shape: dict[torch.Size, _PreparedProgram | None] = {}  # None: the model cannot be lowered
        self.code = model.code
        self.modules: list[nn.Module] = []  # the modules that the graph calls
        self.references: list[tuple[dict[str, Any], str, object]] = []  # dictionary, key, the value that was found
        self.tensors: list[tuple[Tensor, int, torch.Size, int]] = []  # tensor, address, shape, number of writes
        for path in dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op == "call_module"):
            module: nn.Module = model
            for name in path.split("."):
                self.references.append((children_of(module), name, module.get_submodule(name)))
                module = module.get_submodule(name)
            self.modules.append(module)
            for dictionary in (parameters_of(module), buffers_of(module)):
                for name, tensor in dictionary.items():
                    self.references.append((dictionary, name, tensor))
                    if tensor is not None:
                        self.tensors.append((tensor, tensor.data_ptr(), tensor.shape, write_count(tensor)))

    def __reduce__(self) -> Any:
        """A copied or saved model starts without programs."""
        return _no_programs, ()

    # The next two run before every sample. They are plain loops because `all` with a generator takes twice the time.

    def are_current(self, model: PackedGraph) -> bool:
        """Whether code, modules and tensors of the model are those that the programs were made from."""
        if model.code is not self.code:
            return False
        for dictionary, name, value in self.references:
            if dictionary.get(name) is not value:
                return False
        for tensor, address, shape, writes in self.tensors:
            if tensor.data_ptr() != address or tensor.shape != shape or write_count(tensor) != writes:
                return False
        return True

    def may_skip_modules(self, model: PackedGraph) -> bool:
        """Whether not calling the modules goes unnoticed: no hooks, no patched forward, no training, no gradients."""
        if model.training or has_hooks(model):
            return False
        for module in self.modules:
            if module.training or has_forward_hooks(module) or "forward" in module.__dict__:
                return False
        return not torch.is_grad_enabled() or not any(entry[0].requires_grad for entry in self.tensors)

    def run(self, model: PackedGraph, x: Tensor) -> Tensor | None:
        """The output for a sample, if there is a program for its shape."""
        if x.shape not in self.by_shape:
            for oldest in list(self.by_shape)[: -MAX_PROGRAMS + 1]:
                self.by_shape.pop(oldest, None)
            try:
                self.by_shape[x.shape] = _PreparedProgram(model, x)
            except NotLowerableError:
                self.by_shape[x.shape] = None
        prepared = self.by_shape.get(x.shape)
        return None if prepared is None else prepared.run(x)


def _no_programs() -> None:
    return None


class _PreparedProgram:
    """A program with memory for its activations, which one thread uses at a time."""

    def __init__(self, model: PackedGraph, x: Tensor) -> None:
        with torch.no_grad():
            steps, self.output_shape = lower(model, x)
        self.program = Program(steps)
        self.memory, self.lock = x.new_zeros(self.program.size), threading.Lock()

    def run(self, x: Tensor) -> Tensor | None:
        """The output; ``None`` if another thread is using the memory."""
        library = native()
        assert library is not None
        if not self.lock.acquire(blocking=False):
            return None
        try:
            y = x.new_empty(self.output_shape)
            self.program.run(library, x.contiguous(), y, self.memory)
            return y
        finally:
            self.lock.release()
