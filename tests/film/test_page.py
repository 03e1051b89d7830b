"""The page in a real browser, live and from a file."""

import json
import re
import subprocess
import threading
from pathlib import Path

import pytest
from tests.film.films import recorded

import rewire
from rewire.film import server
from rewire.film.format import read
from rewire.film.server import Server, page, save

OLD = Path(__file__).parent / "first_format.jsonl"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --virtual-time-budget=20000 --dump-dom"
browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="no chromium: the page is not opened")
# Appended to the page: what it shows at the start, in the middle and at the end, as JSON inside the document.
PROBE = """<script>(async () => {
  while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 50));
  const found = [];
  for (const at of [0, 5, 9, 3]) {
    go(at);
    found.push(shown.map((film) => film.layers.map((layer) => [layer.nnz, layer.deadRows])));
  }
  document.body.textContent = JSON.stringify({found, columns: shown[0].columns.map((c) => c.nnz),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth});
})();</script>"""


def opened(address, folder, size="1280,900", scheme="light"):
    line = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", f"--window-size={size}"]
    line += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", address]
    return subprocess.run(line, capture_output=True, text=True, timeout=120).stdout


def watched(film, port):
    """The page as a browser has it that watches a film which is served."""
    films = Server([film], port=port)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    dom = opened(films.url, film.parents[1])
    films.shutdown()
    films.server_close()
    return dom


def film_of(lines, folder):
    """A film of these lines, in the folder of a run."""
    path = folder / "run" / "film.rewire"
    path.parent.mkdir()
    path.write_bytes(b"".join(lines))
    return path


def counts(film):
    """Weights of each layer at the start and after each rewiring, from the rewirer's own history."""
    rewirer = film[0]
    now = [layer.nnz for layer in rewirer.layers]
    columns = [now]
    for one in reversed(rewirer.history):
        now = [n - g + d for n, g, d in zip(now, one.grown, one.dropped, strict=True)]
        columns.append(now)
    return columns[::-1]


@browser
@pytest.mark.parametrize("size", ["390,800", "1280,900", "3840,2160"])
def test_a_saved_page_replays_the_film_forwards_and_backwards(film, tmp_path, size):
    save([film[1]], tmp_path / "film.html")
    text = (tmp_path / "film.html").read_text()
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE + "</body>"))
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path, size)
    seen = json.loads(dom.partition("<body")[2].partition(">")[2].partition("</body>")[0])
    assert seen["columns"] == counts(film)
    for at, layers in zip([0, 5, 9, 3], seen["found"], strict=True):
        assert [nnz for nnz, _ in layers[0]] == counts(film)[at]
    empty = [int((layer.mask.flatten(1).sum(1) == 0).sum()) for layer in film[0].layers]
    assert [dead for _, dead in seen["found"][2][0]] == empty
    assert seen["wide"] <= 0


def split(data):
    """The lines of a film, each with the bytes that follow it."""
    parts = []
    while data:
        end = data.index(b"\n") + 1
        end += json.loads(data[:end]).get("bytes", -1) + 1
        parts.append(data[:end])
        data = data[end:]
    return parts


@browser
def test_a_film_of_the_first_format_plays(tmp_path):
    save([OLD], tmp_path / "film.html")
    text = (tmp_path / "film.html").read_text()
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE + "</body>"))
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path)
    seen = json.loads(dom.partition("<body")[2].partition(">")[2].partition("</body>")[0])
    events = read(OLD)
    counts = [len(layer["active"]) for layer in events[0]["layers"]]
    columns = [counts]
    for event in events[1:]:
        if event["kind"] == "rewiring":
            edits = zip(columns[-1], event["layers"], strict=True)
            columns.append([n + len(edit["grow"]) - len(edit["drop"]) for n, edit in edits])
    assert seen["columns"] == columns


@browser
def test_the_page_follows_a_film_that_grows(film, tmp_path, monkeypatch):
    lines = split(film[1].read_bytes())
    growing = film_of(lines[:3], tmp_path)
    rest = iter([*lines[3:-1], lines[-1][:20], lines[-1][20:]])  # the last line in two halves
    answer = server.Handler._film

    def grow_then_answer(handler, query):
        answer(handler, query)
        with growing.open("ab") as file:
            file.write(next(rest, b""))

    monkeypatch.setattr(server.Handler, "_film", grow_then_answer)
    dom = watched(growing, 8640)
    assert f"run: step {film[0].history[-1].step}," in dom
    assert "accuracy" not in dom.partition("problem")[2].partition("</p>")[0]


@browser
@pytest.mark.parametrize("stays", [False, True])
def test_the_head_follows_a_training_unless_it_was_moved(film, tmp_path, monkeypatch, stays):
    """One rewiring a second, each after the page has shown the one before."""
    lines = [line for line in split(film[1].read_bytes()) if b'"metrics"' not in line[:30]]
    growing = film_of(lines[:3], tmp_path)
    rest, steps = iter(lines[3:]), [line["step"] for line in read(film[1]) if line["kind"] != "metrics"]

    def grow(films):
        with growing.open("ab") as file:
            file.write(next(rest, b""))
        return films.films

    monkeypatch.setattr(Server, "find_new_films", grow)
    wait = "while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 50));"
    moved = f"<script>(async () => {{{wait} go(1);}})();</script>"
    text = page().replace("</body>", (moved if stays else "") + "</body>")
    monkeypatch.setattr(server, "page", lambda: text)
    dom = watched(growing, 8650)
    assert next(rest, None) is None  # everything was written while the page looked on
    assert f"run: step {steps[1] if stays else steps[-1]}," in dom


@browser
def test_the_page_begins_again_when_a_training_is_killed_and_resumed(film, tmp_path, monkeypatch):
    lines = split(film[1].read_bytes())
    growing = film_of(lines[:8], tmp_path)
    resumed = b"".join(lines[:5])  # an earlier checkpoint: the file is shorter
    answer, answers = server.Handler._film, []

    def replace_then_answer(handler, query):
        if len(answers) == 2:
            (tmp_path / "new").write_bytes(resumed)
            (tmp_path / "new").replace(growing)
        answers.append(query)
        answer(handler, query)

    monkeypatch.setattr(server.Handler, "_film", replace_then_answer)
    text = page().replace("</body>", FOLLOWED + "</body>")
    monkeypatch.setattr(server, "page", lambda: text)
    dom = watched(growing, 8660)
    steps = [line["step"] for line in read(growing) if line["kind"] != "metrics"]
    assert json.loads(dom.partition("<title>")[2].partition("</title>")[0]) == steps


FOLLOWED = """<script>(async () => {
  for (let i = 0; i < 100; i++) {
    await new Promise((done) => setTimeout(done, 100));
    if (shown.length && shown[0].columns.length) document.title = JSON.stringify(shown[0].columns.map((c) => c.step));
  }
})();</script>"""


@browser
def test_two_runs_side_by_side_share_the_time_axis(film, tmp_path):
    rigl = recorded(tmp_path / "rigl", method=rewire.rigl, until=20)
    save([film[1], rigl[1]], tmp_path / "film.html")
    probe = PROBE.replace(
        "document.body.textContent =",
        """const box = (c) => c.getBoundingClientRect();
      const rivers = views.map((v) => v.river);
      const beside = box(rivers[0]).top === box(rivers[1]).top && box(rivers[1]).left >= box(rivers[0]).right;
      document.body.dataset.seen = JSON.stringify([beside, shown.map((f) => f.edits.length), +$("time").max]);
      document.body.textContent =""",
    )
    (tmp_path / "probe.html").write_text((tmp_path / "film.html").read_text().replace("</body>", probe + "</body>"))
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path)
    seen = json.loads(re.search(r'data-seen="([^"]*)"', dom)[1].replace("&quot;", '"'))
    assert seen == [True, [9, len(rigl[0].history)], 9]
    found = json.loads(dom.partition("<body")[2].partition(">")[2].partition("</body>")[0])["found"]
    starts, ends = found[0][1], found[2][1]
    assert [nnz for nnz, _ in starts] == [nnz for nnz, _ in ends]  # RigL moves no weight between layers
    assert found[0][0] != found[2][0]  # GGR does


@browser
def test_the_keyboard_plays_and_steps(film, tmp_path):
    probe = """<script>(async () => {
      while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 50));
      const key = (k) => document.body.dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true}));
      go(4); key("ArrowRight"); const right = time, said = $("said").textContent;
      key("ArrowLeft"); key("ArrowLeft"); const left = time;
      key(" "); const plays = [playing, $("play").getAttribute("aria-pressed")]; key(" ");
      const named = [...document.querySelectorAll("button, input, select, canvas, output, section")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length))).length;
      const focusable = [...document.querySelectorAll(".tile")].every((e) => e.tabIndex === 0);
      document.querySelector(".tile").click(); const opens = $("zoom").open, title = $("zoom").textContent;
      document.title = JSON.stringify([right, left, plays, playing, said, named, focusable, opens, title]);
    })();</script>"""
    (tmp_path / "probe.html").write_text(page([("run", film[1])]) + probe)
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path)
    right, left, plays, playing, said, unnamed, focusable, opens, title = json.loads(
        dom.partition("<title>")[2].partition("</title>")[0]
    )
    assert (right, left, plays, playing) == (5, 3, [True, "true"], False)
    assert f"step {film[0].history[4].step}, {sum(film[0].history[4].grown)} weights moved" in said
    assert unnamed == 0
    assert focusable
    assert opens
    assert "0, 8 x 1 x 3 x 3" in title


@browser
def test_playing_moves_the_head_in_every_frame_and_ends_at_the_end(film, tmp_path):
    probe = """<script>(async () => {
      while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 50));
      requestAnimationFrame = (frame) => setTimeout(() => frame(performance.now()), 16);  // frames in virtual time
      const original = river, heads = [];
      river = (canvas, film, end, head) => { heads.push(head); original(canvas, film, end, head); };
      play(true);
      while (playing) await new Promise((done) => setTimeout(done, 50));
      const forwards = heads.every((h, i) => !i || h >= heads[i - 1]);
      document.title = JSON.stringify([heads.filter((h) => h % 1).length, forwards, time]);
    })();</script>"""
    (tmp_path / "probe.html").write_text(page([("run", film[1])]) + probe)
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path)
    between, forwards, end = json.loads(dom.partition("<title>")[2].partition("</title>")[0])
    assert between > 20
    assert forwards
    assert end == 9
