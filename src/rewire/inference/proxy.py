"""Proxies that notice what tracing cannot record.

A proxy of ``torch.fx`` stands for a value that is not known while the model is traced. Some code runs on it as on any
object, although the value would decide: as a key of a dictionary, in ``isinstance``, with ``+=``. The proxies here
record augmented assignments as what they are, and refuse the rest.
"""

import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from torch import Size, Tensor, fx
from torch.fx.proxy import Attribute, TraceError

_OWN_ATTRIBUTES = {"tracer", "node", "root", "attr", "_node"}


class StrictTracer(fx.Tracer):
    """Symbolic tracing that keeps what it had to refuse, in case that the model catches the error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.refusals: list[str] = []

    def refuse(self, reason: str) -> NoReturn:
        """Stop tracing."""
        self.refusals.append(reason)
        raise TraceError(reason)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A proxy that notices what tracing cannot record."""
        return StrictProxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """A branch on a value."""
        self.refuse(f"the model branches on the value of {obj.node.name}")

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """A loop over a value."""
        self.refuse(f"the model iterates over {obj.node.name}")


class StrictProxy(fx.Proxy):
    """A proxy whose value cannot decide anything unnoticed."""

    tracer: StrictTracer

    def __getattr__(self, k: str) -> Attribute:
        """An attribute, if tensors or shapes have it: ``hasattr`` and ``.get()`` would depend on the value."""
        if not (k.startswith("__") or hasattr(Tensor, k) or hasattr(Size, k)):
            self.tracer.refuse(f"the model reads the attribute {k} of {self.node.name}")
        return StrictAttribute(self, k)

    def __setattr__(self, k: str, value: Any) -> None:
        if k not in _OWN_ATTRIBUTES:
            self.tracer.refuse(f"the model sets the attribute {k} of {self.node.name}")
        object.__setattr__(self, k, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what isinstance asks for after the type; torch.fx itself may ask
        if _calling_package() != "torch":
            self.tracer.refuse(f"the model asks for the type of {self.node.name}")
        return type(self)

    def __hash__(self) -> int:
        self.tracer.refuse(f"the model looks {self.node.name} up in a set or dictionary")

    def __len__(self) -> int:
        self.tracer.refuse(f"the model asks for the length of {self.node.name}")

    def __int__(self) -> int:
        self.tracer.refuse(f"the model converts {self.node.name} to a number")

    def __float__(self) -> float:
        self.tracer.refuse(f"the model converts {self.node.name} to a number")


class StrictAttribute(Attribute, StrictProxy):
    """An attribute of a value, or a method of it that is about to be called."""


def _calling_package() -> str:
    """The package of the code that calls ``isinstance``, which abstract classes answer in a module of their own."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("abc", "typing"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    def augmented_assignment(self: StrictProxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return augmented_assignment


_AUGMENTED = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
for _name in _AUGMENTED.split():
    setattr(StrictProxy, f"__i{_name}__", _recording(getattr(operator, f"i{_name}")))
