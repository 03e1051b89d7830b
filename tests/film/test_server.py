"""The server that gives away nothing but films."""

import http.client
import json
import shutil
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.film.films import recorded

from rewire.film.format import read
from rewire.film.server import Server, find_films, page, save, titles


@pytest.fixture
def running(film):
    films = Server([film[1]], port=8600)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    yield films
    films.shutdown()
    films.server_close()


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
        "/../film.rewire",
        "/film.rewire",
        "/page/page.js",
        "/%2e%2e/film.rewire",
        "/..%2ffilm.rewire",
    ]
    for path in [*outside, "//etc/passwd", "/films/../../etc/passwd", "/film/../film.rewire?index=0&from=0"]:
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
    shutil.copy(film[1], tmp_path / "b" / "film.rewire")
    films = Server(find_films(tmp_path), port=8680, folder=tmp_path)
    threading.Thread(target=films.serve_forever, daemon=True).start()
    assert json.loads(ask(films, "/films")[1]) == [{"title": "b"}]
    (tmp_path / "a").mkdir()
    shutil.copy(film[1], tmp_path / "a" / "film.rewire")
    assert json.loads(ask(films, "/films")[1]) == [{"title": "b"}, {"title": "a"}]
    assert ask(films, "/film?index=1&from=0")[1] == film[1].read_bytes()
    films.shutdown()
    films.server_close()


@pytest.mark.parametrize("answers", [True, False])
def test_a_taken_port_is_passed_over(film, answers):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if answers:
            taken.listen()
        port = taken.getsockname()[1]
        films = Server([film[1]], port=port)
        assert films.server_address[1] != port
        films.server_close()


def test_what_holds_no_film_gets_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no film: train with `rewire train --film`"):
        find_films(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist: give the folder of a run"):
        find_films(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"should end in \.html"):
        save([], tmp_path / "film.txt")
    (tmp_path / "notes.txt").write_text("secret")
    with pytest.raises(ValueError, match="is not a film: its first line should say"):
        find_films(tmp_path / "notes.txt")


@pytest.mark.parametrize("port", [-1, 0, 65536, 99999])
def test_what_is_no_port_gets_a_sentence(film, port):
    with pytest.raises(ValueError, match=f"--port {port} must be between 1 and 65535"):
        Server([film[1]], port=port)


def test_a_title_cannot_leave_its_script(tmp_path):
    (tmp_path / "film.rewire").touch()
    text = page([("</script><script>alert(1)</script>", tmp_path / "film.rewire")])
    assert "<script>alert" not in text


def test_films_of_a_folder_of_runs(tmp_path):
    for name in ("b", "a"):
        recorded(tmp_path / name)
    assert [path.parent.name for path in find_films(tmp_path)] == ["a", "b"]
    assert read(find_films(tmp_path / "a")[0])[0]["title"] == "small"


def test_films_in_folders_of_folders_have_different_titles(film, tmp_path):
    for name in ("train/one", "sweep/one", "two"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(film[1], tmp_path / name / "film.rewire")
    found = find_films(tmp_path)
    assert titles(found) == ["sweep/one", "train/one", "two"]
    films = Server(found, port=8700, folder=tmp_path)
    assert films.find_new_films() == found
    films.server_close()
