"""The films of the runs that were recorded, inside the page of a report."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rewire.film.format import film_in
from rewire.film.server import page
from rewire.lab.labels import distinct_labels, in_folders
from rewire.lab.report.groups import distinct
from rewire.lab.results import Record

MOST = 8_000_000  # bytes of films in a page: what is beyond is left to `rewire watch`


def film_section(records: Sequence[Record], directory: Path) -> str:
    """A section whose films appear when it is opened; nothing if no run was recorded."""
    films = [(record.run, film) for record in distinct(records) if (film := film_in(record.folder)) is not None]
    if not films:
        return ""
    films.sort(key=lambda pair: pair[0].seed)
    labels = [run.label for run, _ in films]
    if len(set(labels)) < len(labels):  # some differ in settings that a label leaves out
        labels = in_folders(distinct_labels([run for run, _ in films]), [film.parent.name for _, film in films])
    recorded = [(label, film) for label, (_, film) in zip(labels, films, strict=True)]
    shown = _within(recorded)
    content = json.dumps(page(shown)).replace("<", "\\u003c")  # so that no text can end the script
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


def _within(recorded: Sequence[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """As many films as fit into a page, in their order; always at least one."""
    shown: list[tuple[str, Path]] = []
    room = MOST
    for title, film in recorded:
        size = film.stat().st_size
        if size <= room or not shown:
            shown.append((title, film))
            room -= size
    return shown
