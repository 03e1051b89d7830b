"""What a figure says on hover: a text for each point of a curve, inside the SVG, so that it needs no script.

Curves carry the name of their series (a method, a layer), by which a page lets people choose among them.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

RADIUS = 6  # of the area around a point that answers, in points of the page
_TEXTS: "WeakKeyDictionary[Line2D, list[str]]" = WeakKeyDictionary()
_COUNTS: "WeakKeyDictionary[Figure, int]" = WeakKeyDictionary()
_SERIES = re.compile(r'id="[^"]*series:\d+:([^"]*)"')


def name_series(artist: Artist, series: str) -> None:
    """Let a page find everything that is drawn for a series."""
    figure = artist.get_figure()
    assert isinstance(figure, Figure)
    _COUNTS[figure] = _COUNTS.get(figure, 0) + 1  # ids are unique, and the same in every drawing of the figure
    artist.set_gid(f"series:{_COUNTS[figure]}:{series}")


def describe_points(line: Line2D, series: str, texts: Sequence[str]) -> None:
    """Give each point of a curve its text, and the curve the name of its series."""
    points = len(np.asarray(line.get_xydata()))
    if len(texts) != points:
        raise ValueError(f"{len(texts)} texts for {points} points of {series}: each needs one")
    name_series(line, series)
    _TEXTS[line] = list(texts)


def seeds_text(values: Mapping[int, float], form: str) -> str:
    """The value of each seed.

    >>> seeds_text({0: 0.5, 2: 0.25}, ".1%")
    'seed 0: 50.0%, seed 2: 25.0%'
    """
    return ", ".join(f"seed {seed}: {value:{form}}" for seed, value in sorted(values.items()))


def mark_series(svg: str) -> str:
    """An SVG in which the series are attributes instead of ids."""
    return _SERIES.sub(r'data-series="\1"', svg)


def hover_points(figure: Figure) -> str:
    """Transparent circles with titles, in the coordinates of the SVG of a figure that has been drawn."""
    width, height = figure.get_size_inches() * 72
    circles = ""
    for axes in figure.axes:
        for line in axes.lines:
            for (x, y), text in zip(_places(line, figure), _TEXTS.get(line, []), strict=False):
                place = f'cx="{x * width:.1f}" cy="{(1 - y) * height:.1f}" r="{RADIUS}"'
                series = escape(str(line.get_gid()).split(":", 2)[2])
                circles += f'<circle data-series="{series}" {place}><title>{escape(text)}</title></circle>'
    return f'<g class="points">{circles}</g>' if circles else ""


def _places(line: Line2D, figure: Figure) -> list[tuple[float, float]]:
    """The points of a curve as shares of the figure's width and height, from the lower left."""
    if line not in _TEXTS or line.axes is None:
        return []
    places = figure.transFigure.inverted().transform(line.axes.transData.transform(line.get_xydata()))
    return [(float(x), float(y)) for x, y in places]
