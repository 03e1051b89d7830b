"""Residual blocks whose forward can run as one chain of stages.

The ``forward`` of a block is the user's code. A chain replaces it only if it can do nothing but call the block's own
convolutions, batch norms and ReLUs and add their outputs: its bytecode reads child modules and plain constants of the
block and writes to local variables only. Such a forward runs once on symbols, which record the calls. When a child or
a constant changes, it is recorded again.
"""

import dis
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from rewire._torch import children_of
from rewire.nn.chains import ConvNorm, ModuleChain
from rewire.nn.hwcn import HwcnBatchNorm2d, leading_relu_limit
from rewire.nn.packed import NO_RELU, PackedConv2d

_SIDE_EFFECTS = (
    *("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "STORE_NAME", "DELETE_", "IMPORT_", "YIELD"),
    *("MAKE_FUNCTION", "LOAD_BUILD_CLASS", "BEFORE_WITH", "SETUP_WITH", "SEND", "GET_AWAITABLE", "RAISE"),
)
_RELU_FUNCTIONS: dict[Any, float] = {F.relu: math.inf, torch.relu: math.inf, F.relu6: 6.0}
_TORCH_NAMES = ("relu", "relu6", "add", "nn", "functional")  # attributes of torch's modules and of tensors
_TORCH_MODULES = (torch, F, nn)
_CONSTANTS = (bool, int, type(None))
_OTHER_KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


class NoChainError(Exception):
    """The forward of a block is not a chain of stages."""


@dataclass(eq=False)
class Call:
    """One recorded call: ``kind`` is "input", "conv", "norm", "relu" or "add"."""

    kind: str
    reads: tuple["Call", ...] = ()
    module: nn.Module | None = None
    relu_limit: float = NO_RELU
    users: int = 0


@dataclass(eq=False)
class Recording:
    """The calls of one run of a forward, in order, and the modules that were called."""

    sequential_forwards: Sequence[Callable[..., Any]]  # of containers that call their children one after the other
    calls: list[Call] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)

    def add(self, kind: str, *reads: "Symbol", module: nn.Module | None = None, limit: float = NO_RELU) -> "Symbol":
        """Record a call."""
        call = Call(kind, tuple(symbol.call for symbol in reads), module, limit)
        for read in call.reads:
            read.users += 1
        self.calls.append(call)
        return Symbol(self, call)


class Symbol:
    """Stands for a tensor while a forward is recorded."""

    def __init__(self, recording: Recording, call: Call) -> None:
        self.recording, self.call = recording, call

    def __add__(self, other: object) -> "Symbol":
        if not isinstance(other, Symbol):
            raise NoChainError("a sum with something else than an activation")
        return self.recording.add("add", self, other)

    __iadd__ = add = __add__

    def relu(self) -> "Symbol":
        """``torch.Tensor.relu``."""
        return self.recording.add("relu", self, limit=math.inf)

    def __bool__(self) -> bool:
        raise NoChainError("a branch that depends on the data")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "Symbol":
        symbol = args[0] if args else None
        if function in _RELU_FUNCTIONS and isinstance(symbol, Symbol):
            return symbol.recording.add("relu", symbol, limit=_RELU_FUNCTIONS[function])
        if function is torch.add and len(args) == 2 and not kwargs and isinstance(symbol, Symbol):
            total: Symbol = symbol + args[1]
            return total
        raise NoChainError(f"a call of {function}")


class SymbolicModule:
    """Stands for a module while a forward is recorded: its children and its constants can be read, and it be called."""

    def __init__(self, recording: Recording, module: nn.Module) -> None:
        self._recording, self._module = recording, module

    def __getattr__(self, name: str) -> Any:
        value = children_of(self._module).get(name, self._module.__dict__.get(name))
        return SymbolicModule(self._recording, value) if isinstance(value, nn.Module) else value

    def __iter__(self) -> Iterator["SymbolicModule"]:
        if not self._is_sequential():
            raise NoChainError("a loop over something else than an nn.Sequential")
        children = children_of(self._module).values()
        return iter([SymbolicModule(self._recording, child) for child in children if child is not None])

    def __call__(self, x: object) -> Any:
        module, recording = self._module, self._recording
        recording.modules.append(module)
        if not isinstance(x, Symbol):
            raise NoChainError("a module that reads something else than an activation")
        if self._is_sequential():
            for child in self:
                x = child(x)
            return x
        if type(module) is nn.Identity:
            return x
        if isinstance(module, PackedConv2d):
            return recording.add("conv", x, module=module)
        if type(module) is HwcnBatchNorm2d:
            return recording.add("norm", x, module=module)
        limit = leading_relu_limit([module])
        if limit < 0:
            raise NoChainError(f"there is no stage for {type(module).__name__}")
        return recording.add("relu", x, limit=limit)

    def _is_sequential(self) -> bool:
        return type(self._module).forward in self._recording.sequential_forwards


def record(block: nn.Module, sequential_forwards: Sequence[Callable[..., Any]]) -> ModuleChain:
    """The chain that a block's forward is; raises ``NoChainError`` if it is none."""
    recording = Recording(sequential_forwards)
    output = type(block).forward(SymbolicModule(recording, block), recording.add("input"))
    if not isinstance(output, Symbol):
        raise NoChainError("the block returns something else than one activation")
    output.call.users += 1
    stages = _Matcher(recording.calls).stages(output.call)
    return ModuleChain(stages, [block, *recording.modules])


class _Matcher:
    """Turns recorded calls into stages. What a stage absorbs must not be read by anything else."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.found: list[ConvNorm] = []
        self.numbers: dict[Call, int] = {}  # of activations, by the call that completes them

    def stages(self, output: Call) -> list[ConvNorm]:
        """The stages, of which the last one returns the output."""
        for call in self.calls:
            if call.users == 0:
                raise NoChainError("an activation that nothing reads")
            getattr(self, f"_{call.kind}")(call)
        if not self.found or self.numbers.get(output) != len(self.found):
            raise NoChainError("the output is not that of the last stage")
        return self.found

    def _input(self, call: Call) -> None:
        self.numbers[call] = 0

    def _conv(self, call: Call) -> None:
        if call.users != 1:
            raise NoChainError("a convolution that several calls read")

    def _norm(self, call: Call) -> None:
        conv = call.reads[0]
        source = self.numbers.get(conv.reads[0]) if conv.kind == "conv" else None
        if source is None or not isinstance(conv.module, PackedConv2d) or not isinstance(call.module, HwcnBatchNorm2d):
            raise NoChainError("a batch norm that is not behind a convolution")
        self.found.append(ConvNorm(conv.module, call.module, source))
        self.numbers[call] = len(self.found)

    def _relu(self, call: Call) -> None:
        stage = self._open_stage(call.reads[0])
        if stage is None:
            raise NoChainError("a ReLU that is not behind a batch norm or a sum")
        stage.relu_limit = call.relu_limit
        self.numbers[call] = self.numbers[call.reads[0]]

    def _add(self, call: Call) -> None:
        numbers = [self.numbers.get(read, -1) for read in call.reads]
        latest = 0 if numbers[0] > numbers[1] else 1
        stage = self._open_stage(call.reads[latest])
        if min(numbers) < 0 or numbers[0] == numbers[1] or stage is None or stage.addend is not None:
            raise NoChainError("a sum that is not behind a batch norm")
        stage.addend = numbers[1 - latest]
        self.numbers[call] = numbers[latest]

    def _open_stage(self, call: Call) -> ConvNorm | None:
        """The stage whose output a call is, if it has no ReLU yet and one reader."""
        number = self.numbers.get(call, 0)
        if number == 0 or call.users != 1 or self.found[number - 1].relu_limit >= 0:
            return None
        return self.found[number - 1]


_CHAINS: WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], ModuleChain | None]] = WeakKeyDictionary()
_NAMES: WeakKeyDictionary[FunctionType, tuple[str, ...] | None] = WeakKeyDictionary()


def block_chain(block: nn.Module, sequential_forwards: Sequence[Callable[..., Any]]) -> ModuleChain | None:
    """The chain that computes what a block computes, if there is one."""
    forward = type(block).forward
    if not isinstance(forward, FunctionType):
        return None
    if forward not in _NAMES:
        _NAMES[forward] = _names_read(forward)
    names = _NAMES[forward]
    if names is None:
        return None
    fingerprint = _fingerprint(block, names)
    known, chain = _CHAINS.get(block, ((), None))
    if len(known) != len(fingerprint) or any(a is not b for a, b in zip(known, fingerprint, strict=True)):
        chain = _chain_or_none(block, names, sequential_forwards)
        _CHAINS[block] = fingerprint, chain
    return chain


def _chain_or_none(
    block: nn.Module, names: Sequence[str], sequential_forwards: Sequence[Callable[..., Any]]
) -> ModuleChain | None:
    for name in names:
        is_constant = type(block.__dict__.get(name, block)) in _CONSTANTS
        if name not in children_of(block) and not is_constant and name not in _TORCH_NAMES:
            return None
    try:
        return record(block, sequential_forwards)
    except Exception:  # the forward may do to a symbol whatever it does to a tensor
        return None


def _names_read(forward: FunctionType) -> tuple[str, ...] | None:
    """The attributes of ``self`` that a forward may read; ``None`` if it may have effects besides its result."""
    code: CodeType = forward.__code__
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_freevars or code.co_flags & _OTHER_KINDS:
        return None
    if any(step.opname.startswith(_SIDE_EFFECTS) for step in dis.get_instructions(code)):
        return None
    is_torch = {name for name in code.co_names if any(forward.__globals__.get(name) is m for m in _TORCH_MODULES)}
    return tuple(name for name in code.co_names if name not in is_torch)


def _fingerprint(block: nn.Module, names: Sequence[str]) -> tuple[object, ...]:
    """What the recorded calls depend on: the class, and the children and constants that are read, with their classes.

    The class of a module changes when it is packed.
    """
    children, attributes = children_of(block), block.__dict__
    fingerprint: list[object] = [type(block)]
    for name in names:
        value = children.get(name, attributes.get(name))
        for part in value.modules() if isinstance(value, nn.Module) else (value,):
            fingerprint += (part, type(part))
    return tuple(fingerprint)
