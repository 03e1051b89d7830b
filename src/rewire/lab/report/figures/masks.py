"""Figure 3 of the paper: the masks of one layer, method beside method."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.numpy import load_file

from rewire._lookup import choose
from rewire.lab.report.ablation import ONLY_ABLATION
from rewire.lab.report.layer_images import layer_images
from rewire.lab.report.pictures import Picture, Subject, by_method, register_figure
from rewire.lab.report.style import GRID, MASK, STYLE, WIDTH, shrink, tile
from rewire.lab.results import Record


@register_figure("masks", order=2)
def picture(subject: Subject) -> list[Picture]:
    """The layer that was chosen; the third one for a network that does not have it."""
    if subject.column is None:
        return []
    groups = by_method(subject.column_records, without=ONLY_ABLATION)
    if not any(_masks(group) for group in groups.values()):
        return []
    names = subject.layer_names
    layer = subject.layer if subject.layer in names else names[min(2, len(names) - 1)]
    about = "White: active weights. Outputs down, inputs across, each kernel a tile. First seed."
    figure = masks(subject.column_records, str(layer))
    title = f"Figure 3: masks of layer {layer}"
    picture = subject.picture("masks", title, f"{about} {subject.column_title}", figure)
    topologies = {method: topology for method, group in groups.items() if (topology := _masks(group))}
    return [replace(picture, details=layer_images(topologies, str(layer)))]


@matplotlib.rc_context(STYLE)
def masks(records: Iterable[Record], layer: str) -> Figure:
    """The final masks of one layer side by side; white is an active weight (Figure 3)."""
    groups = by_method(records, without=ONLY_ABLATION)
    topologies = {method: topology for method, group in groups.items() if (topology := _masks(group))}
    images = {method: np.asarray(choose("layer", layer, topology) != 0) for method, topology in topologies.items()}
    shrunk = {method: shrink(tile(image)) for method, image in images.items()}
    brightest = max(float(image.max()) for image in shrunk.values()) or 1.0
    figure = Figure(figsize=(WIDTH, WIDTH / max(len(shrunk), 3) + 0.6))
    for axes, (method, image) in zip(figure.subplots(1, len(shrunk), squeeze=False)[0], shrunk.items(), strict=True):
        long = max(image.shape) > 3 * min(image.shape)
        axes.imshow(image, MASK, vmin=0, vmax=brightest, interpolation="none", aspect="auto" if long else "equal")
        axes.set(title=method, xticks=[], yticks=[])
        axes.set_xlabel(f"{images[method].sum():,} weights, {images[method].mean():.2%}", fontsize=9)
        axes.spines[:].set(visible=True, color=GRID[0])  # where the mask is as dark as the page
    return figure


def _masks(group: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """The topology of the first seed that has one."""
    paths = [record.folder / "topology.safetensors" for record in group if record.result]
    return next((load_file(path) for path in paths if path.exists()), {})
