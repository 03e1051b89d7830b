"""A line chart of speed-ups against sparsity as SVG: one line a network, the speed-up on a logarithmic axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 44, 196, 48, 40  # margins of the plot; the names of the networks are in the right one
LEAST = 15  # pixels between the names of two networks


@dataclass(frozen=True)
class Look:
    """The colours of one version of the chart."""

    text: str
    faint: str
    lines: tuple[str, ...]  # Okabe and Ito's palette, which colour-blind people can tell apart


LOOKS = {
    "light": Look("#1f2328", "#8c959f", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a06a00", "#3f8fc4", "#57606a")),
    "dark": Look("#e6edf3", "#6e7681", ("#56b4e9", "#ff8c42", "#2fd3a4", "#e79ac8", "#e6b94f", "#9ecbff", "#b1bac4")),
}
DASHES = ("", "6 3", "2 3")  # the next one when the colours are used up


def draw(sparsities: Sequence[str], networks: dict[str, list[float]], look: Look) -> str:
    """The chart; networks with the highest speed-up first."""
    title = "A training step, times faster than dense PyTorch"
    top = max(1.0, *(max(values) for values in networks.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{look.text}" role="img" aria-label="{title}">',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{title}</text>',
        *_axes(sparsities, top, look),
    ]
    ends = _spread([height(values[-1], top) for values in networks.values()])
    for number, ((name, values), end) in enumerate(zip(networks.items(), ends, strict=True)):
        colour = look.lines[number % len(look.lines)]
        dash = DASHES[number // len(look.lines) % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="2.5" fill="none"' + (f' stroke-dasharray="{dash}"' if dash else "")
        points = [(across(i, len(values)), height(value, top)) for i, value in enumerate(values)]
        parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" {style}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        right = WIDTH - RIGHT
        parts.append(f'<line x1="{right + 5}" y1="{points[-1][1]:.1f}" x2="{right + 16}" y2="{end:.1f}" {style}/>')
        label = f'<text x="{right + 20}" y="{end + 4:.1f}" fill="{colour}">{name} '
        parts.append(f'{label}<tspan font-weight="bold">{values[-1]:.1f}</tspan></text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(sparsities: Sequence[str], top: float, look: Look) -> list[str]:
    """Horizontal lines at powers of two, the one at dense PyTorch dashed, and the sparsities below."""
    parts = []
    for power in range(math.floor(math.log2(top)) + 1):
        y = height(2.0**power, top)
        dash = ' stroke-dasharray="4 3"' if power == 0 else ' stroke-opacity="0.35"'
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{look.faint}"{dash}/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{2**power}</text>')
    parts.append(f'<text x="{LEFT + 6}" y="{height(1.0, top) - 6:.1f}" fill="{look.faint}">dense PyTorch</text>')
    for i, sparsity in enumerate(sparsities):
        x = across(i, len(sparsities))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="middle">{sparsity} sparse</text>')
    return parts


def across(index: int, count: int) -> float:
    """The horizontal position of a sparsity."""
    inset = 30
    width = WIDTH - LEFT - RIGHT - inset
    return LEFT + inset + width * index / max(count - 1, 1)


def height(speedup: float, top: float) -> float:
    """The vertical position of a speed-up: 1 at the bottom, the highest at the top."""
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * math.log2(speedup) / max(math.log2(top), 1.0)


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights from top to bottom, moved apart so that names do not overlap.

    >>> _spread([10.0, 12.0, 60.0])
    [10.0, 25.0, 60.0]
    """
    moved: list[float] = []
    for value in heights:
        moved.append(max(value, moved[-1] + LEAST) if moved else value)
    over = max(moved[-1] - (HEIGHT - BOTTOM), 0.0) if moved else 0.0
    for i in range(len(moved) - 1, -1, -1):  # what was pushed out below is pushed back
        limit = moved[i + 1] - LEAST if i + 1 < len(moved) else moved[i] - over
        moved[i] = min(moved[i], limit)
    return moved
