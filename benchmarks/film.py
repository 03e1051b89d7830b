"""``python -m benchmarks.film FOLDER``: what recording a film of ResNet-18 costs, and how smoothly Chromium plays it.

100 rewirings of GGR at 97 % sparsity, one after every step, on random images of CIFAR's size: how long a rewiring takes
does not depend on what the images show. The film stays in the folder and is recorded only if it is not there yet. Its
size is compared with the least that any code could need.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from math import lgamma, log, prod
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

import rewire
from rewire.core.method import Rewiring
from rewire.core.topology import Edit
from rewire.film.format import NAME, read
from rewire.film.recorder import Recorder
from rewire.film.server import page, save
from rewire.lab import models

REWIRINGS, ORDINARY = 100, 10
# Appended to the page: plays the film to its end and reports the times of the frames, and how long reading took.
PROBE = """<script>(async () => {
  while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 20));
  const read = performance.now();
  go(0);
  await new Promise((done) => setTimeout(done, 1500));
  const times = [];
  play(true);
  const frame = (now) => { times.push(now); if (playing) requestAnimationFrame(frame); else
    fetch("/", {method: "POST", body: JSON.stringify({read, times})}); };
  requestAnimationFrame(frame);
})();</script>"""


class TimedRecorder(Recorder):
    """Notes how long it takes to record each rewiring."""

    seconds: list[float]

    def _rewired(self, record: Rewiring, edits: Sequence[Edit]) -> None:
        began = time.perf_counter()
        super()._rewired(record, edits)
        self.seconds.append(time.perf_counter() - began)


def recording(folder: Path) -> dict[str, float]:
    """Milliseconds of a step without a rewiring, of one with a rewiring, and of recording it; bytes of the film."""
    torch.manual_seed(0)
    model = models.build("resnet-18", classes=100, image=(3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    method = rewire.ggr(density=0.03, every=1, until=REWIRINGS + 1)
    rewirer = rewire.sparsify(model, optimizer, method)
    film = TimedRecorder(rewirer, folder, "ResNet-18, GGR")
    film.seconds = []
    steps = []
    for _ in range(REWIRINGS + ORDINARY):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(100, (8,))).backward()
        began = time.perf_counter()
        optimizer.step()
        steps.append(time.perf_counter() - began)
    film.close()
    grown = sum(sum(one.grown) for one in rewirer.history)
    return {
        "rewirings": len(rewirer.history),
        "weights": rewirer.nnz,
        "moved": grown,
        "ordinary optimizer step [ms]": 1e3 * median(steps[-ORDINARY:]),
        "optimizer step with rewiring [ms]": 1e3 * median(steps[: len(rewirer.history)]),
        "of which recording [ms]": 1e3 * median(film.seconds),
        "longest recording [ms]": 1e3 * max(film.seconds),
    }


def sizes(film: Path) -> dict[str, float]:
    """Bytes of a film and of a page with it, and the least that the film could take.

    If all sets of positions of these sizes were equally likely, no code could write them in fewer bits, on average,
    than the binary logarithm of their number. It falls if one knows how many of the dropped weights were newborns.
    """
    start, *events = read(film)
    layers = [(prod(layer["shape"]), layer["active"].size, np.zeros(0, np.int64)) for layer in start["layers"]]
    plain = knowing = sum(bits(size, active) for size, active, _ in layers)
    moved = dropped = young = 0
    for event in events:
        if event["kind"] != "rewiring":
            continue
        for i, ((size, active, newborn), edit) in enumerate(zip(layers, event["layers"], strict=True)):
            drop, grow = edit["drop"].size, edit["grow"].size
            fresh = int(np.isin(edit["drop"], newborn).sum())
            grown = bits(size - active + drop, grow)
            plain += bits(active, drop) + grown
            knowing += bits(newborn.size, fresh) + bits(active - newborn.size, drop - fresh) + grown
            moved, dropped, young = moved + grow, dropped + drop, young + fresh
            layers[i] = size, active - drop + grow, edit["grow"]
    with tempfile.TemporaryDirectory() as folder:
        save([film], Path(folder) / "film.html")
        saved = (Path(folder) / "film.html").stat().st_size
    written = film.stat().st_size
    return {
        "film [MB]": written / 1e6,
        "saved page [MB]": saved / 1e6,
        "moved weights": moved,
        "bytes per moved weight": written / moved,
        "least possible [MB]": plain / 8e6,
        "dropped that the rewiring before grew [%]": 100 * young / dropped,
        "least possible, knowing how many [MB]": knowing / 8e6,
    }


def bits(n: int, k: int) -> float:
    """The binary logarithm of the number of subsets of k among n."""
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)


def playing(film: Path, size: str) -> dict[str, float]:
    """How long Chromium takes to read a film, and the times between frames while it plays."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no chromium: install it to measure how smoothly films play")
    content = page([(film.parent.name, film)]).replace("</body>", PROBE + "</body>")
    answers: list[dict[str, list[float]]] = []
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(content.encode())

        def do_POST(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name that the base class uses)
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = f"--headless --no-sandbox --disable-gpu --no-first-run --window-size={size} --remote-debugging-port=0"
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        process = subprocess.Popen(
            [browser, *flags.split(), f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        arrived.wait(120)
        process.terminate()
        process.wait()
        server.shutdown()
    times = answers[0]["times"]
    gaps = sorted(b - a for a, b in pairwise(times))
    return {
        "reading [s]": float(answers[0]["read"]) / 1e3,  # type: ignore[arg-type]
        "frames": len(times),
        "frames a second": 1e3 * len(gaps) / sum(gaps),
        "median gap [ms]": median(gaps),
        "95th percentile [ms]": gaps[int(0.95 * len(gaps))],
        "longest [ms]": gaps[-1],
    }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/film-resnet18")
    if not (folder / NAME).exists():
        show("recording", recording(folder))
    show("size", sizes(folder / NAME))
    for size in ("390,800", "1280,900", "3840,2160"):
        show(f"playing at {size.replace(',', ' x ')}", playing(folder / NAME, size))


def show(title: str, numbers: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {value:,.4g}" for name, value in numbers.items()), flush=True)


if __name__ == "__main__":
    main()
