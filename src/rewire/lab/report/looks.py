"""What reports call the things in a run, and how they draw its method. Unregistered names stay as they are."""

from collections.abc import Iterable

from rewire.core.named import Look
from rewire.lab.names import DENSE_LOOK, METHODS, REGISTRIES
from rewire.lab.references import file_label
from rewire.lab.run import Run
from rewire.parts.start import STARTS


def method_look(run: Run) -> Look:
    """The look of a run's method, with the options of the run: GGR that grows at random is ``GGR SET``."""
    if run.is_dense:
        return DENSE_LOOK
    entry = METHODS.get(run.method)
    return entry.look(run.to_dict()) if entry is not None else Look(file_label(run.method))


def all_looks() -> list[Look]:
    """Every look of a registered method in the order of tables: dense training first, a method after its variants."""
    looks = [DENSE_LOOK]
    for entry in METHODS.values():
        default, *variants = entry.looks
        looks += [*variants, default]
    return looks


def look_of_label(label: str) -> Look:
    """The look that has this label."""
    return next((look for look in all_looks() if look.label == label), Look(label))


def label_of(role: str, name: str) -> str:
    """What tables call a data set (role ``data``) or a network (role ``model``)."""
    entry = REGISTRIES[role].get(name)
    return str(entry.label) if entry is not None else file_label(name)


def network_label(model: str, width: float = 1.0) -> str:
    """A network with its width, where that is not the full one.

    >>> network_label("vgg16", 0.25), network_label("vgg16")
    ('VGG16 x0.25', 'VGG16')
    """
    return label_of("model", model) + (f" x{width:g}" if width != 1 else "")


def setting(model: str, width: float, sparsity: float, start: str = "") -> str:
    """Network, sparsity and start in words.

    >>> setting("vgg16", 0.25, 0.96, "uniform"), setting("vgg16", 1.0, 0.99)
    ('VGG16 x0.25, 96 %, uniform start', 'VGG16, 99 %')
    """
    words = start.replace("erk", "ERK").replace("-", " ")
    return f"{network_label(model, width)}, {100 * sparsity:g} %" + (f", {words} start" if start else "")


def labels_of_library(role: str) -> set[str]:
    """The labels of everything that is registered."""
    if role == "method":
        return {look.label for look in all_looks()}
    return {str(entry.label) for entry in REGISTRIES[role].values()}


def position(name: str, names: Iterable[str]) -> int:
    """The index of a name in an order; names that are not in it come last."""
    order = list(names)
    return order.index(name) if name in order else len(order)


def method_position(label: str) -> tuple[int, str]:
    """A key that sorts the labels of methods in the order of tables."""
    return position(label, (look.label for look in all_looks())), label


def start_position(start: str) -> int:
    """A key that sorts starts in the order of tables."""
    return position(start, STARTS)
