"""Checks the built documentation: ``python -m tests.built_docs build/docs``, the last step of ``make docs``.

Every internal link leads to a file and to an anchor that exist, every public name is in the reference, the search
answers when the pages are opened from disk, without a server and without a network, and no page has to be scrolled
sideways on a telephone or a laptop.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import rewire

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


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
    address = f"{(site / 'search.html').resolve().as_uri()}?q={words}"
    if BROWSER and "methods/ggr.html" not in opened(address, 8):
        yield f"a search for {words!r} in {address} does not find the page about GGR"


# Opens each page in a frame as wide as a window. What is too wide scrolls in a box of its own, or the whole page does.
MEASURE = """
<pre id="answer"></pre>
<script>
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 800px; border: 0`;
  frame.src = page;
  await new Promise((done) => { frame.onload = done; document.body.append(frame); });
  const root = frame.contentDocument.documentElement, found = [];
  if (root.scrollWidth > width) found.push(`is ${root.scrollWidth} pixels wide in a window of ${width}`);
  for (const image of frame.contentDocument.images)
    if (image.complete && !image.naturalWidth) found.push(`does not show ${image.getAttribute("src")}`);
  for (const picture of frame.contentDocument.querySelectorAll(".river, .charts img"))
    if (width > 1000 && picture.getBoundingClientRect().bottom > 800)
      found.push(`does not show all of its pictures on the first screen`);
  frame.remove();
  return found.map((what) => [page, what]);
}
(async () => {
  const found = [];
  for (const width of WIDTHS) for (const page of PAGES) found.push(...await measure(page, width));
  document.getElementById("answer").textContent = "<" + JSON.stringify(found) + ">";
})();
</script>
"""


def layout_failures(site: Path, widths: tuple[int, ...] = (390, 1280)) -> Iterator[str]:
    """Pages that a reader has to scroll sideways on a telephone or a laptop, and images that do not load."""
    if not BROWSER:
        return
    pages = [path.resolve() for path in sorted(site.rglob("*.html")) if "_modules" not in path.parts]
    script = MEASURE.replace("WIDTHS", json.dumps(widths)).replace("PAGES", json.dumps([p.as_uri() for p in pages]))
    with tempfile.TemporaryDirectory() as folder:
        harness = Path(folder) / "measure.html"
        harness.write_text(script, encoding="utf-8")
        answer = re.search(r'<pre id="answer">&lt;(.*?)&gt;</pre>', opened(harness.as_uri(), 120), re.DOTALL)
    if answer is None:
        yield "the pages could not be measured: chromium did not finish"
        return
    for page, what in json.loads(html.unescape(answer[1])):
        yield f"{page.removeprefix(site.resolve().as_uri() + '/')} {what}"


def opened(address: str, seconds: int) -> str:
    """A page after its scripts have run, without a network."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory() as profile:
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom")
        local = ("--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files")
        size = ("--window-size=1400,900", f"--virtual-time-budget={1000 * seconds}")
        command = [BROWSER, *options, *local, *size, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


def main(site: Path) -> None:
    """Print what is wrong; the exit code is 1 if anything is."""
    failures = [*broken_links(site), *missing_names(site), *search_failures(site), *layout_failures(site)]
    for failure in failures:
        print(failure, file=sys.stderr)
    if not BROWSER:
        print("no chromium: search and layout were not tried in a browser")
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages: {len(failures) or 'no'} failures")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
