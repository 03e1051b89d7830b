"""Checks the built documentation: ``python -m tests.built_docs build/docs``, the last step of ``make docs``.

Every internal link leads to a file and to an anchor that exist, every public name is in the reference, and the search
answers when the pages are opened from disk, without a server and without a network.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import rewire


class Page(HTMLParser):
    """The anchors of one page, and everything that it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        self.links += [value for name in ("href", "src") if (value := found.get(name))]


def broken_links(site: Path) -> Iterator[str]:
    """A sentence for every internal link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            name = path.relative_to(site.resolve())
            if not target.exists():
                yield f"{name}: there is no {link}"
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} has no such anchor"


def missing_names(site: Path) -> Iterator[str]:
    """The public names that no page of the reference describes."""
    anchors = {anchor for path in (site / "api").glob("*.html") for anchor in Page(path).anchors}
    for name in rewire.__all__:
        if not anchors & {f"rewire.{name}", f"module-rewire.{name}"}:
            yield f"the reference does not describe rewire.{name}"


def search_failures(site: Path, words: str = "redistribution") -> Iterator[str]:
    """What goes wrong when a reader searches a copy of the pages on disk."""
    if not (site / "searchindex.js").exists():
        yield "there is no searchindex.js"
        return
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no chromium: the search was not tried in a browser")
        return
    address = f"{(site / 'search.html').resolve().as_uri()}?q={words}"
    with tempfile.TemporaryDirectory() as profile:
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom")
        offline = ("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=8000")
        done = subprocess.run([browser, *options, *offline, address], capture_output=True, text=True, timeout=90)
    if "methods/ggr.html" not in done.stdout:
        yield f"a search for {words!r} in {address} does not find the page about GGR"


def main(site: Path) -> None:
    """Print what is wrong; the exit code is 1 if anything is."""
    failures = [*broken_links(site), *missing_names(site), *search_failures(site)]
    for failure in failures:
        print(failure, file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages: {len(failures) or 'no'} failures")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
