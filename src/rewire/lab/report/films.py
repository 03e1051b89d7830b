"""The films of the runs that were recorded, inside the page of a report."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rewire.film.format import NAME
from rewire.film.server import page
from rewire.lab.report.groups import distinct
from rewire.lab.results import Record

MOST = 8_000_000  # bytes of films in a page: what is beyond is left to `rewire watch`


def film_section(records: Sequence[Record], directory: Path) -> str:
    """A section whose films appear when it is opened; nothing if no run was recorded."""
    recorded = [one for one in distinct(records) if (one.folder / NAME).is_file()]
    if not recorded:
        return ""
    shown = _within(sorted(recorded, key=lambda one: one.run.seed))
    films = [{"title": one.run.label, "text": (one.folder / NAME).read_text()} for one in shown]
    content = json.dumps(page(films)).replace("<", "\\u003c")  # so that no text can end the script
    left = len(recorded) - len(shown)
    more = f" {left} more would make this page too large." if left else ""
    command = f"<code>rewire watch {escape(str(directory))}</code>"
    return (
        '<h2 id="films">Films</h2><p class="soft">'
        f"The rewirings of {len(shown)} of {len(recorded)} recorded runs.{more} "
        f"All films, and those of runs that are being trained: {command}.</p>"
        '<details class="film"><summary>Watch the networks rewire themselves</summary>'
        "<noscript><p>The films need JavaScript.</p></noscript></details>"
        f'<script type="application/json" id="film-page">{content}</script>'
    )


def _within(recorded: Sequence[Record]) -> list[Record]:
    """As many runs as fit into a page, the first seeds first; always at least one."""
    shown: list[Record] = []
    room = MOST
    for one in recorded:
        size = (one.folder / NAME).stat().st_size
        if size <= room or not shown:
            shown.append(one)
            room -= size
    return shown
