"""The page in a real browser, live and from a file; and a server that gives away nothing but films."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.film.films import recorded

import rewire
from rewire.film import server
from rewire.film.format import read
from rewire.film.server import Server, find_films, page, save

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


def opened(address, folder, size="1280,900"):
    line = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", address]
    return subprocess.run(line, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("film") / "run")


@pytest.fixture
def running(film):
    films = Server([film[1]], port=8600)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    yield films
    films.shutdown()
    films.server_close()


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


@browser
def test_the_page_follows_a_film_that_grows(film, tmp_path, monkeypatch):
    lines = film[1].read_text().splitlines(keepends=True)
    growing = tmp_path / "run" / "film.jsonl"
    growing.parent.mkdir()
    growing.write_text("".join(lines[:3]))
    rest = iter([*lines[3:-1], lines[-1][:20], lines[-1][20:]])  # the last line in two halves
    answer = server.Handler._film

    def grow_then_answer(handler, query):
        answer(handler, query)
        with growing.open("a") as file:
            file.write(next(rest, ""))

    monkeypatch.setattr(server.Handler, "_film", grow_then_answer)
    films = Server([growing], port=8640)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    dom = opened(films.url, tmp_path)
    films.shutdown()
    films.server_close()
    assert f"run: step {film[0].history[-1].step}," in dom
    assert "accuracy" not in dom.partition("problem")[2].partition("</p>")[0]


@browser
def test_the_page_begins_again_when_a_training_is_killed_and_resumed(film, tmp_path, monkeypatch):
    lines = film[1].read_text().splitlines(keepends=True)
    growing = tmp_path / "run" / "film.jsonl"
    growing.parent.mkdir()
    growing.write_text("".join(lines[:8]))
    resumed = "".join(lines[:4] + lines[5:7])  # as if the third rewiring had come out otherwise: the file is shorter
    answer, answers = server.Handler._film, []

    def replace_then_answer(handler, query):
        if len(answers) == 2:
            (tmp_path / "new").write_text(resumed)
            (tmp_path / "new").replace(growing)
        answers.append(query)
        answer(handler, query)

    monkeypatch.setattr(server.Handler, "_film", replace_then_answer)
    text = page().replace("</body>", FOLLOWED + "</body>")
    monkeypatch.setattr(server, "page", lambda: text)
    films = Server([growing], port=8660)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    dom = opened(films.url, tmp_path)
    films.shutdown()
    films.server_close()
    steps = [json.loads(line)["step"] for line in resumed.splitlines() if '"metrics"' not in line]
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
    (tmp_path / "probe.html").write_text(page([{"title": "run", "text": film[1].read_text()}]) + probe)
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
    (tmp_path / "probe.html").write_text(page([{"title": "run", "text": film[1].read_text()}]) + probe)
    dom = opened(f"file://{tmp_path / 'probe.html'}", tmp_path)
    between, forwards, end = json.loads(dom.partition("<title>")[2].partition("</title>")[0])
    assert between > 20
    assert forwards
    assert end == 9


def ask(films, path, host=None, method="GET"):
    connection = http.client.HTTPConnection(*films.server_address[:2], timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{films.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_server_gives_films_by_number_and_nothing_else(running, film):
    whole = film[1].read_bytes()
    assert ask(running, "/film?index=0&from=0") == (200, whole)
    assert ask(running, f"/film?index=0&from={len(whole) - 5}") == (200, whole[-5:])
    assert ask(running, f"/film?index=0&from={len(whole) + 5}") == (200, b"")
    assert json.loads(ask(running, "/films")[1]) == [{"title": "run"}]
    for path in ("/film?index=1&from=0", "/film?index=-1&from=0", "/film?index=0", "/film?index=x&from=0"):
        assert ask(running, path)[0] == 400, path
    outside = [
        "/etc/passwd",
        "/../film.jsonl",
        "/film.jsonl",
        "/page/page.js",
        "/%2e%2e/film.jsonl",
        "/..%2ffilm.jsonl",
    ]
    for path in [*outside, "//etc/passwd", "/films/../../etc/passwd", "/film/../film.jsonl?index=0&from=0"]:
        assert ask(running, path)[0] == 404, path


def test_it_answers_to_this_machine_and_its_own_names_alone(running):
    assert running.server_address[0] == "127.0.0.1"
    assert ask(running, "/", host="evil.example:8600")[0] == 403
    assert ask(running, "/", host=f"localhost:{running.server_address[1]}")[0] == 200


def test_nothing_can_be_written(running, film):
    before = film[1].read_bytes()
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
        assert ask(running, "/film?index=0&from=0", method=method)[0] == 501, method
    assert film[1].read_bytes() == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60))
def test_any_request_gets_an_answer_and_never_a_file(running, film, path):
    status, _ = ask(running, "/" + path)
    assert status in (200, 400, 404)
    if status == 200:
        assert path.lstrip("/").startswith(("films", "film?", "?", "#")) or not path.strip("/")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=st.binary(max_size=200), line=st.booleans())
def test_bytes_that_are_no_request_do_no_harm(running, film, request, line):
    with socket.create_connection(running.server_address[:2], timeout=10) as connection:
        connection.sendall(b"GET " * line + request + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert film[1].read_bytes()[:40] not in answer
    assert ask(running, "/films")[0] == 200


def test_films_that_are_begun_later_are_listed_at_the_end(film, tmp_path):
    (tmp_path / "b").mkdir()
    shutil.copy(film[1], tmp_path / "b" / "film.jsonl")
    films = Server(find_films(tmp_path), port=8680, folder=tmp_path)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    assert json.loads(ask(films, "/films")[1]) == [{"title": "b"}]
    (tmp_path / "a").mkdir()
    shutil.copy(film[1], tmp_path / "a" / "film.jsonl")
    assert json.loads(ask(films, "/films")[1]) == [{"title": "b"}, {"title": "a"}]
    assert ask(films, "/film?index=1&from=0")[1] == film[1].read_bytes()
    films.shutdown()
    films.server_close()


def test_a_taken_port_is_passed_over(film):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        films = Server([film[1]], port=port)
        assert films.server_address[1] != port
        films.server_close()


def test_what_holds_no_film_gets_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no film: train with `rewire train`"):
        find_films(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist: give the folder of a run"):
        find_films(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"should end in \.html"):
        save([], tmp_path / "film.txt")


def test_a_title_cannot_leave_its_script(tmp_path):
    text = page([{"title": "</script><script>alert(1)</script>", "text": ""}])
    assert "<script>alert" not in text


def test_films_of_a_folder_of_runs(tmp_path):
    for name in ("b", "a"):
        recorded(tmp_path / name)
    assert [path.parent.name for path in find_films(tmp_path)] == ["a", "b"]
    assert read(find_films(tmp_path / "a")[0])[0]["title"] == "small"
