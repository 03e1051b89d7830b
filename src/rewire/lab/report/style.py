"""The style of figures, how they are written, and how a mask becomes an image.

A figure uses a few fixed colours, and ``to_svg`` makes CSS variables of them, so that a page can show light and dark
shades of one drawing.
"""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from rewire.core.named import Look
from rewire.lab.names import DENSE_LOOK
from rewire.lab.report.hover import hover_points, mark_series
from rewire.lab.report.looks import all_looks
from rewire.lab.results import write_with

INK, GRID = ("#1f2937", "#e2e6ec"), ("#d5dae1", "#3b4554")  # on a light and on a dark page
REFERENCE = DENSE_LOOK.light  # what a network is compared with
ACCENT = ("#c2410c", "#ff7f45")  # bars, on a light and on a dark page
# From the first layer to the last, legible on light and on dark pages.
DEPTH = LinearSegmentedColormap.from_list("depth", ["#3b6fd4", "#8a63d2", "#d0588c", "#d9772b"])
MASK = LinearSegmentedColormap.from_list("mask", ["#16202c", "#ffffff"])
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK[0]),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"font.size": 10.0, "axes.titlesize": 10.5, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID[0]},
    **{"svg.fonttype": "none", "svg.hashsalt": "rewire", "figure.constrained_layout.use": True},
}
WIDTH, PIXELS = 8.4, 256  # inches of a figure; pixels of a mask's side
NAMED = 16  # layers whose names fit below an axis or into a legend


def dark_shades() -> dict[str, str]:
    """The colour on a dark page for each colour of a figure on a light one."""
    looks = [(look.light, look.dark) for look in (Look("other"), *all_looks())]
    return dict((INK, GRID, ACCENT, *looks))


def save(figure: Figure, stem: Path) -> list[Path]:
    """``stem.png`` and ``stem.svg``, the same bytes for the same figure."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context(STYLE):
        write_with(files[0], lambda path: figure.savefig(path, format="png", dpi=160, metadata={"Software": None}))
        write_with(files[1], lambda path: figure.savefig(path, format="svg", metadata={"Date": None}))
    return files


def to_svg(figure: Figure, prefix: str) -> str:
    """An SVG element for a page: transparent, colours as CSS variables, ids of its own, no outside reference."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    head, _, body = text[text.index("<svg") :].partition(">")
    text = re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", head) + ">" + body
    text = mark_series(text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for light in dark_shades():
        text = text.replace(light, f"var(--c{light[1:]}, {light})")
    head, closing, rest = text.rpartition("</svg>")
    return head + hover_points(figure) + closing + rest


def tile(mask: NDArray[Any]) -> NDArray[Any]:
    """A mask as an image: outputs down, inputs across, every kernel a tile; other shapes have all else across.

    >>> tile(np.arange(8).reshape(2, 2, 1, 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    if mask.ndim == 4:
        outputs, inputs, height, width = mask.shape
        return mask.transpose(0, 2, 1, 3).reshape(outputs * height, inputs * width)
    return mask.reshape(len(mask), -1)


def shrink(image: NDArray[Any], pixels: int = PIXELS) -> NDArray[np.float64]:
    """An image of at most ``pixels`` a side; each of its values is the mean of a block."""
    shrunk = image.astype(np.float64)
    for axis in (0, 1):
        edges = np.linspace(0, image.shape[axis], min(image.shape[axis], pixels), endpoint=False).astype(int)
        lengths = np.diff([*edges, image.shape[axis]])
        shrunk = np.add.reduceat(shrunk, edges, axis) / np.expand_dims(lengths, 1 - axis)
    return shrunk


def logarithmic(axes: Axes, *, percent: bool) -> None:
    """Make the y axis logarithmic, with more labels where it spans little."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %" if percent else f"{value:,g}")


def some(count: int) -> list[int]:
    """All numbers below ``count``, or as many of them, evenly spread, as a legend can name."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, NAMED))})
