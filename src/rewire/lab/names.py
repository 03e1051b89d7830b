"""Where the names of a run are looked up: its data set, its network and its method."""

from typing import Any

from rewire.core.named import Look, NamedMethod
from rewire.lab.data.source import DATASETS
from rewire.lab.models.registry import MODELS
from rewire.lab.references import Code, code_of, file_label, is_reference, short_name, state
from rewire.lab.registry import Registry
from rewire.methods import METHODS as BUILT_IN

DENSE_LOOK = Look("Dense", "#6b7280", "#9aa4b2", "")  # ordinary training, without a method


def _entry(name: str, value: Any) -> NamedMethod:
    return value if isinstance(value, NamedMethod) else NamedMethod(name, value, Look(file_label(name)))


METHODS: Registry[NamedMethod] = Registry("method", group="rewire.methods", wrap=_entry, also=BUILT_IN)

REGISTRIES: dict[str, Registry[Any]] = {"data": DATASETS, "model": MODELS, "method": METHODS}


def state_of(code: Code) -> str:
    """What is wrong with code that a run recorded; nothing if it is here as it was. None of it is executed."""
    if (problem := state(code)) or is_reference(code.name) or code.name in REGISTRIES[code.role].names():
        return problem
    return "is not installed"


def identify(role: str, name: str, known: Code | None) -> tuple[str, Code | None]:
    """The name that a run is to carry, and the code behind it; none for what the library brings.

    ``known``: what the run has recorded of its code already.
    """
    if known is not None and known.name == name:
        return name, known
    entry = REGISTRIES[role].find(name)
    short = short_name(name) if is_reference(name) else name
    return short, code_of(role, short, entry.function)
