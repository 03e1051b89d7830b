"""Draws the speed-ups of training that ``docs/benchmarks.md`` lists: ``python -m benchmarks.chart``.

Writes ``docs/_static/speedups-light.svg`` and ``-dark.svg``. A test compares them with the table, so that the chart
follows the numbers.
"""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TABLE, FOLDER = DOCS / "benchmarks.md", DOCS / "_static"

WIDTH, LEFT, RIGHT, TOP = 640, 190, 60, 62  # of the picture, in pixels; the bars are between LEFT and RIGHT
BAR, GAP = 11, 14  # the height of a bar, and the space between two networks


@dataclass(frozen=True)
class Look:
    """The colours of one version of the chart; bars from the lowest sparsity to the highest."""

    text: str
    faint: str
    bars: tuple[str, ...]


LOOKS = {
    "light": Look("#1f2328", "#8c959f", ("#9cc9e8", "#3b8fc4", "#0b4f7d")),
    "dark": Look("#e6edf3", "#6e7681", ("#1f5f8b", "#4ba3d9", "#bfe3f9")),
}


def speedups(text: str) -> tuple[list[str], dict[str, list[float]]]:
    """The sparsities, and for every network that is trained its speed-ups on two threads."""
    lines = text.splitlines()
    heading = next(i for i, line in enumerate(lines) if re.match(r"\| *\|.*%", line))
    sparsities = [cell.strip() for cell in lines[heading].strip("|").split("|")[1:]]
    found = {}
    for line in lines[heading:]:
        if row := re.match(r"\| train (.*?), batch \d+ \|(.*)\|", line):
            found[row[1]] = [float(cell.split(",")[0]) for cell in row[2].split("|")]
    return sparsities, found


def draw(sparsities: list[str], networks: dict[str, list[float]], look: Look) -> str:
    """Bars for every network, one for each sparsity, from 0; a line marks dense PyTorch at 1."""
    scale = (WIDTH - LEFT - RIGHT) / max(max(values) for values in networks.values())
    step = len(sparsities) * BAR + GAP
    height = TOP + step * len(networks) + 8
    title = "A training step, times faster than dense PyTorch"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{look.text}" role="img" aria-label="{title}">',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="bold">{title}</text>',
    ]
    for i, (name, colour) in enumerate(zip(sparsities, look.bars, strict=True)):
        x = LEFT + 110 * i
        parts.append(f'<rect x="{x}" y="32" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="42">{name} sparse</text>')
    for row, (network, values) in enumerate(networks.items()):
        y = TOP + row * step
        name, _, start = network.partition(", ")
        middle = y + len(values) * BAR / 2
        parts.append(f'<text x="{LEFT - 12}" y="{middle:g}" text-anchor="end">{name}</text>')
        place = f'x="{LEFT - 12}" y="{middle + 13:g}" text-anchor="end"'
        parts.append(f'<text {place} fill="{look.faint}" font-size="11">{start}</text>')
        for i, (value, colour) in enumerate(zip(values, look.bars, strict=True)):
            top, length = y + i * BAR, value * scale
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 1}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + length + 5:.1f}" y="{top + 9}" font-size="10">{value:g}</text>')
    dense = LEFT + scale
    line = f'x1="{dense:.1f}" y1="{TOP - 6}" x2="{dense:.1f}" y2="{height - 12}"'
    parts.append(f'<line {line} stroke="{look.faint}" stroke-dasharray="3 3"/>')
    return "\n".join([*parts, "</svg>", ""])


def charts() -> dict[Path, str]:
    """The content of both files."""
    sparsities, networks = speedups(TABLE.read_text())
    return {FOLDER / f"speedups-{name}.svg": draw(sparsities, networks, look) for name, look in LOOKS.items()}


if __name__ == "__main__":
    for path, content in charts().items():
        path.write_text(content)
        print(path)
