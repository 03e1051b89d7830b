"""``PackedGraph``: a packed model that runs a single sample, or a few, in one native call.

On one sample, calling the layers from Python takes longer than computing them. Where one call is not possible (a
module that cannot be lowered, several inputs, a hook) the graph runs layer by layer, as it does on larger batches.
A few samples run whichever way is faster, which is measured at the first batch of a size.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire._torch import buffers_of, children_of, has_forward_hooks, has_hooks, parameters_of, write_count
from rewire.inference.lower import NotLowerableError, lower
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.kernels.library import native
from rewire.kernels.sample.program import Program
from rewire.kernels.threads import thread_count
from rewire.kernels.tuning import MAX_SAMPLES, PADDED_BATCH

MAX_PROGRAMS = 8  # of samples of different shapes; each holds memory for all of its activations
LAYER_BY_LAYER = 0  # instead of a number of workers: the batch kernels run,
PADDED = -1  # and this is the same, on a batch that is filled up to whole vectors
REPEATS, HOPELESS = 3, 1.5  # measurements of a way to run a batch; a way that takes this much longer is measured once


class PackedGraph(fx.GraphModule):
    """A traced model that runs a single sample, or a few, in one native call where that is possible."""

    programs: "SamplePrograms | None" = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the model."""
        y = _run_samples(self, args[0]) if len(args) == 1 and not kwargs else None
        return super().__call__(*args, **kwargs) if y is None else y

    def __reduce__(self) -> Any:
        """Pickle as a ``PackedGraph``: the base class would come back as a plain ``fx.GraphModule``."""
        return _restore, super().__reduce__()


def _restore(rebuild: Callable[..., fx.GraphModule], args: tuple[Any, ...]) -> PackedGraph:
    graph_module = rebuild(*args)
    model = PackedGraph(graph_module, graph_module.graph)
    model.__dict__.update(graph_module.__dict__)  # attributes that the graph does not use
    return model


def _run_samples(model: PackedGraph, x: Any) -> Tensor | None:
    """The output for a few samples from one native call; ``None`` if the model has to run layer by layer."""
    if not isinstance(x, Tensor) or not is_eager(x) or not runs_native(x) or x.dim() not in (2, 4):
        return None
    if not 1 <= len(x) <= MAX_SAMPLES or torch.is_autocast_enabled("cpu"):
        return None
    if torch.is_grad_enabled() and x.requires_grad:
        return None
    programs = model.programs
    if programs is None or not programs.are_current(model):
        programs = model.programs = SamplePrograms(model)
    return programs.run(model, x) if programs.may_skip_modules(model) else None


class SamplePrograms:
    """The programs of a model by sample shape, and what they were made from, to notice when the model changes."""

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
        """The output for a few samples, if there is a program for their shape and it is the fastest way."""
        shape = x.shape[1:]
        if shape not in self.by_shape:
            for oldest in list(self.by_shape)[: -MAX_PROGRAMS + 1]:
                self.by_shape.pop(oldest, None)
            try:
                self.by_shape[shape] = _PreparedProgram(model, x[:1])
            except NotLowerableError:
                self.by_shape[shape] = None
        prepared = self.by_shape.get(shape)
        if prepared is None:
            return None
        workers = prepared.workers_for(model, x)
        return _run_padded(model, x) if workers == PADDED else prepared.run(x, workers)


def _no_programs() -> None:
    return None


class _PreparedProgram:
    """A program with memory for its activations, which one thread of Python uses at a time."""

    def __init__(self, model: PackedGraph, x: Tensor) -> None:
        with torch.no_grad():
            steps, shape = lower(model, x)
        self.program, self.output_shape = Program(steps), shape[1:]
        self.memory, self.lock = x.new_zeros(0), threading.Lock()
        self.workers: dict[tuple[int, int], int] = {}  # by size of the batch and number of threads

    def run(self, x: Tensor, workers: int) -> Tensor | None:
        """The output; ``None`` if the batch runs layer by layer, or if another thread is using the memory."""
        if workers < 1 or not self.lock.acquire(blocking=False):
            return None
        try:
            return self._run_alone(x, workers)
        finally:
            self.lock.release()

    def _run_alone(self, x: Tensor, workers: int) -> Tensor:
        """The output, for a caller that holds the lock."""
        library = native()
        assert library is not None
        if len(self.memory) < workers * self.program.size:
            self.memory = x.new_zeros(workers * self.program.size)
        y = x.new_empty(len(x), *self.output_shape)
        self.program.run(library, x.contiguous(), y, self.memory, workers=workers)
        return y

    def workers_for(self, model: PackedGraph, x: Tensor) -> int:
        """How many samples run at once; ``LAYER_BY_LAYER`` or ``PADDED`` if the batch kernels are faster."""
        if len(x) == 1:
            return 1
        threads = thread_count()
        key = len(x), threads
        if key not in self.workers:
            if not self.lock.acquire(blocking=False):
                return LAYER_BY_LAYER
            try:
                self.workers[key] = self._fastest(model, x, {1, min(len(x), threads)})
            finally:
                self.lock.release()
        return self.workers[key]

    def _fastest(self, model: PackedGraph, x: Tensor, candidates: set[int]) -> int:
        """The fastest way to run a batch: one of the numbers of workers, or layer by layer, padded or not."""
        try:
            with torch.no_grad():
                lower(model, x)
        except NotLowerableError:  # the model does not keep the samples apart
            return LAYER_BY_LAYER
        if torch.are_deterministic_algorithms_enabled():  # the ways differ in rounding
            return max(candidates)
        ways: dict[int, Callable[[], object]] = {LAYER_BY_LAYER: partial(model.forward, x)}
        if len(x) % PADDED_BATCH:
            ways[PADDED] = partial(_run_padded, model, x)
        for workers in candidates:
            ways[workers] = partial(self._run_alone, x, workers)
        for run in ways.values():
            run()  # builds index tables, and warms up
        best = {way: _seconds(run) for way, run in ways.items()}
        limit = HOPELESS * min(best.values())
        for _ in range(REPEATS - 1):
            best |= {way: min(best[way], _seconds(run)) for way, run in ways.items() if best[way] <= limit}
        return min(best, key=best.__getitem__)


def _run_padded(model: PackedGraph, x: Tensor) -> Tensor:
    """The output of the batch kernels on the samples and on zeros behind them: vectors of the batch are full then."""
    missing = -len(x) % PADDED_BATCH
    y: Tensor = model.forward(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))
    return y[: len(x)].contiguous()


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
