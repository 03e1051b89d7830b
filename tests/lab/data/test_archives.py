import gzip
import hashlib
import io
import os
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from rewire.lab.data import archives
from rewire.lab.data import datasets as data
from rewire.lab.data.archives import Archive

CIFAR = {"cifar-100-binary/train.bin": bytes([1, 2, *[3] * 3072]) * 4, "cifar-100-binary/test.bin": bytes(3074) * 2}


@dataclass
class Mirror:
    """A web server on this machine: what it serves, and what it was asked for."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut: int = 0  # bytes to leave out at the end of an answer that promises them
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            served.asked.append(name)
            if name not in served.files:
                self.send_error(404)
                return
            body = served.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - served.cut])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Mirror(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("REWIRE_CACHE", str(folder))
    monkeypatch.delenv("REWIRE_DATA", raising=False)
    return folder


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as bundle:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return out.getvalue()


def archive(name: str, content: bytes) -> Archive:
    return Archive(f"http://publisher.invalid/{name}", f"md5:{hashlib.md5(content).hexdigest()}", len(content))


def is_empty(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir())


def small_cifar(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Let the registry know a CIFAR-100 of six images; return its archive."""
    content = tar_of(CIFAR)
    source = data.DATASETS["cifar100"]
    small = replace(source, train=4, test=2, archives=(archive("cifar-100-binary.tar.gz", content),))
    monkeypatch.setitem(data.DATASETS, "cifar100", small)
    return content


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_fetch_then_load(mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.files["cifar-100-binary.tar.gz"] = small_cifar(monkeypatch)
    folder = data.fetch("cifar100", base_url=mirror.url)
    assert folder == cache / "cifar-100-binary"
    assert data.load("cifar100").train_labels.tolist() == [2] * 4
    assert [p.name for p in cache.iterdir()] == ["cifar-100-binary"]  # neither the archive nor a temporary folder


def test_what_is_there_is_not_fetched_again(mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.files["cifar-100-binary.tar.gz"] = small_cifar(monkeypatch)
    for _ in range(2):
        data.fetch("cifar100", base_url=mirror.url + "/", progress=False)
    assert mirror.asked == ["cifar-100-binary.tar.gz"]


def test_digits_need_no_fetching() -> None:
    assert data.fetch("digits") is None


def test_a_wrong_file_is_refused_and_leaves_nothing(mirror: Mirror, cache: Path) -> None:
    mirror.files["cifar-100-binary.tar.gz"] = tar_of(CIFAR)  # well-formed, but not the publisher's
    with pytest.raises(ValueError, match=r"cifar-100-binary\.tar\.gz is not the file it should be .*03b5dce0"):
        data.fetch("cifar100", base_url=mirror.url)
    assert is_empty(cache)
    with pytest.raises(FileNotFoundError, match="rewire data fetch cifar100"):
        data.load("cifar100")


def test_a_truncated_download_is_refused_and_leaves_nothing(
    mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = small_cifar(monkeypatch)
    mirror.files["cifar-100-binary.tar.gz"], mirror.cut = content, 10
    with pytest.raises(OSError, match=r"could not be downloaded: .*Try again"):
        data.fetch("cifar100", base_url=mirror.url)
    assert is_empty(cache)
    mirror.files["cifar-100-binary.tar.gz"], mirror.cut = content[:-10], 0  # whole answer, truncated file
    with pytest.raises(ValueError, match="is not the file it should be"):
        data.fetch("cifar100", base_url=mirror.url)
    assert is_empty(cache)
    mirror.files["cifar-100-binary.tar.gz"] = content
    data.fetch("cifar100", base_url=mirror.url)
    assert data.load("cifar100").test_labels.tolist() == [0, 0]


def test_a_missing_file_or_server_is_an_error_that_names_the_address(mirror: Mirror, cache: Path) -> None:
    with pytest.raises(OSError, match=rf"{mirror.url}/tiny-imagenet-200\.zip could not be downloaded: 404"):
        data.fetch("tiny-imagenet", base_url=mirror.url)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9/.* could not be downloaded"):
        data.fetch("tiny-imagenet", base_url="http://127.0.0.1:9")
    assert is_empty(cache)


def test_single_files_are_put_into_the_folder_together_or_not_at_all(mirror: Mirror, cache: Path) -> None:
    contents = {f"{name}.gz": gzip.compress(name.encode()) for name in ("a", "b")}
    wanted = [archive(name, content) for name, content in contents.items()]
    mirror.files["a.gz"] = contents["a.gz"]
    with pytest.raises(OSError, match=r"b\.gz could not be downloaded"):
        archives.fetch(wanted, "letters", cache, base_url=mirror.url)
    assert is_empty(cache)
    mirror.files["b.gz"] = contents["b.gz"]
    folder = archives.fetch(wanted, "letters", cache, base_url=mirror.url)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == contents


def test_an_archive_without_the_expected_folder_is_refused(mirror: Mirror, cache: Path) -> None:
    content = zip_of({"other/file.txt": b"x"})
    mirror.files["set.zip"] = content
    with pytest.raises(ValueError, match=r"set\.zip holds other, but the folder wanted was expected"):
        archives.fetch([archive("set.zip", content)], "wanted", cache, base_url=mirror.url)
    assert is_empty(cache)


def test_the_registry_names_files_hashes_and_sizes() -> None:
    for source in data.DATASETS.values():
        for item in source.archives:
            assert item.url.endswith(item.file)
            algorithm, digest = item.hash.split(":")
            assert len(digest) == 2 * hashlib.new(algorithm).digest_size
        assert (source.download > 0) == bool(source.archives)


# -- archives that are already on the machine --------------------------------------------------------------------------


def test_archives_in_a_given_folder_are_verified_and_extracted_into_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = small_cifar(monkeypatch)
    given = tmp_path / "given"
    given.mkdir()
    (given / "cifar-100-binary.tar.gz").write_bytes(content[:-1])
    with pytest.raises(ValueError, match=rf"has {len(content) - 1} bytes, but the official file has {len(content)}"):
        data.load("cifar100", data_dir=given)
    (given / "cifar-100-binary.tar.gz").write_bytes(content[:-1] + b"?")
    with pytest.raises(ValueError, match="has the md5 hash"):
        data.load("cifar100", data_dir=given)
    assert is_empty(cache)
    (given / "cifar-100-binary.tar.gz").write_bytes(content)
    assert data.load("cifar100", data_dir=given).train_labels.tolist() == [2] * 4
    assert [p.name for p in given.iterdir()] == ["cifar-100-binary.tar.gz"]


# -- extraction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "C:\\evil", "..\\evil"])
def test_zip_members_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zip_of({"good": b"1", name: b"2"}))
    with pytest.raises(ValueError, match="points outside"):
        archives.extract(path, tmp_path / "out")
    assert is_empty(tmp_path / "out")
    assert not list(tmp_path.rglob("*evil*"))


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr(link, "/etc")
    with pytest.raises(ValueError, match="points outside"):
        archives.extract(path, tmp_path / "out")


def test_tar_members_that_point_outside_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(tar_of({"../evil": b"2"}))
    with pytest.raises(ValueError, match=r"x\.tar\.gz cannot be extracted"):
        archives.extract(path, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_broken_archives_are_refused(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).bytes(5000)
    good = (zip_of if name.endswith("zip") else tar_of)({"set/file": noise})
    for content in (b"", b"junk" * 50, good[: len(good) // 2]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"(?s){name} cannot be extracted: .*Download it again"):
            archives.extract(tmp_path / name, tmp_path / "out")


def test_the_workspace_is_removed_after_errors_and_old_ones_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / ".partial-old", tmp_path / ".partial-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "file").touch()
    os.utime(old, (0, time.time() - 2 * 24 * 3600))

    def fail() -> None:
        with archives.workspace(tmp_path) as work:
            (work / "file").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == [".partial-young"]
