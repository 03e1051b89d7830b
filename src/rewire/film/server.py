"""``rewire watch``: a page, for this machine alone, that follows films as they are written. It writes nothing."""

import base64
import errno
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from rewire.film.format import NAMES, film_in, read

HOST, PORT, TRIES = "127.0.0.1", 8420, 20
PORTS = 1 << 16  # the first number that is too large for one
DEPTH = 3  # folders between the one that is watched and a film
CHUNK = 1 << 22  # bytes of a film in one answer
SCRIPTS = ("decode.js", "film.js", "draw.js", "river.js", "page.js")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def find_films(target: Path) -> list[Path]:
    """The films of a run, of all runs in a folder, or the file itself; a sentence if there is none."""
    if target.is_file():
        read(target)  # raises for what is no film
        return [target]
    if not target.exists():
        raise FileNotFoundError(f"{target} does not exist: give the folder of a run, or a folder of runs")
    own = film_in(target)
    films = [own] if own is not None else _films_below(target)
    if not films:
        raise FileNotFoundError(
            f"{target} holds no film: train with `rewire train --film`, or record one in your loop with rewire.record"
        )
    return films


def page(films: Sequence[tuple[str, Path]] = ()) -> str:
    """The page; with films (titles and files), one that shows these and asks for nothing."""
    folder = files("rewire.film").joinpath("page")
    script = "\n".join(folder.joinpath(name).read_text() for name in SCRIPTS)
    contents = [{"title": title, "data": base64.b64encode(path.read_bytes()).decode()} for title, path in films]
    embedded = json.dumps(contents).replace("<", "\\u003c")  # so that no text can end the script
    text = folder.joinpath("page.html").read_text()
    for mark, content in (
        ("/*STYLE*/", folder.joinpath("page.css").read_text()),
        ("/*SCRIPT*/", script),
        ("/*FILMS*/ []", embedded),
    ):
        if mark not in text:
            raise AssertionError(f"the page has no {mark}")
        text = text.replace(mark, content)
    return text


def save(films: Sequence[Path], out: Path) -> None:
    """One HTML file with films inside, which needs nothing but a browser."""
    if out.suffix != ".html":
        raise ValueError(f"{out} should end in .html")
    content = page(list(zip(titles(films), films, strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(content)


class Handler(BaseHTTPRequestHandler):
    """Answers ``/``, ``/films`` and ``/film?index=I&from=BYTES``. A film is named by its number, never by a path."""

    server: "Server"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The page, the list of films, or a part of a film."""
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self._refuse(HTTPStatus.FORBIDDEN)  # another site that resolves to this machine
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._answer(page().encode(), "text/html; charset=utf-8")
        elif address.path == "/films":
            films = [{"title": title} for title in titles(self.server.find_new_films())]
            self._answer(json.dumps(films).encode(), "application/json")
        elif address.path == "/film":
            self._film(parse_qs(address.query))
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _film(self, query: dict[str, list[str]]) -> None:
        try:
            index, begin = (int(query[name][0]) for name in ("index", "from"))
            if index < 0 or begin < 0:
                raise IndexError(index)
            with self.server.films[index].open("rb") as file:
                about = os.fstat(file.fileno())
                file.seek(begin)
                self._answer(
                    file.read(CHUNK),
                    "application/octet-stream",
                    # A training that resumes replaces the file: pages that have read further begin again.
                    headers={"Film-Version": str(about.st_ino), "Film-Size": str(about.st_size)},
                )
        except (KeyError, ValueError, IndexError, OverflowError):
            self._refuse(HTTPStatus.BAD_REQUEST)
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _answer(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer(f"{status.value} {status.phrase}\n".encode(), "text/plain; charset=utf-8", status)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name that the base class uses)
        """Quiet: a request a second would drown everything else."""


class Server(ThreadingHTTPServer):
    """Serves films to this machine alone. ``folder``: where films of runs that begin later are looked for."""

    daemon_threads = True
    allow_reuse_port = False  # Two servers on one port would share its requests.

    def __init__(self, films: Sequence[Path], port: int = PORT, folder: Path | None = None) -> None:
        self.films, self._folder = list(films), folder
        self._listen_from(port)

    def _listen_from(self, first: int) -> None:
        """Listen on the first port from here on that can be had."""
        if not 0 < first < PORTS:
            raise ValueError(f"--port {first} must be between 1 and {PORTS - 1}")
        end = min(first + TRIES, PORTS)
        for port in range(first, end):
            try:
                # Asking before whether a port is free does not help: others may take it in between.
                super().__init__((HOST, port), Handler)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(f"ports {first} to {end - 1} of {HOST} are all taken: give another one with --port")

    def find_new_films(self) -> list[Path]:
        """All films, those that were begun since the last look at the end, so that the others keep their numbers."""
        if self._folder is not None and self._folder.is_dir():
            known = {path.parent for path in self.films}
            self.films += [path for path in _films_below(self._folder) if path.parent not in known]
        return self.films

    @property
    def url(self) -> str:
        """Where to look."""
        return f"http://{HOST}:{self.server_address[1]}/"


def _films_below(folder: Path) -> list[Path]:
    """The films of the runs in a folder and in the folders in it, such as runs/train/NAME below runs."""
    runs = {path.parent for depth in range(1, DEPTH + 1) for name in NAMES for path in folder.glob("*/" * depth + name)}
    return [film for run in sorted(runs) if (film := film_in(run)) is not None]


def titles(films: Sequence[Path]) -> list[str]:
    """What the page calls films: by the folder of the run, and by the folder around it where two have the same name."""
    names = [_title(path) for path in films]
    counts = Counter(names)
    around = [path.resolve().parent.parent.name for path in films]
    return [f"{above}/{name}" if counts[name] > 1 else name for above, name in zip(around, names, strict=True)]


def _title(path: Path) -> str:
    return path.resolve().parent.name if path == film_in(path.parent) else path.stem
