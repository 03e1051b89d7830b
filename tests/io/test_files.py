"""What a writer replaces: regular files, also behind symbolic links, and nothing else."""

import os

import pytest
from torch import nn

import rewire
from rewire.lab.results import write_json


def save(path):
    rewire.save_sparse(nn.Linear(2, 2), path)


def test_a_pipe_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for write in (save, lambda path: write_json(path, {})):
        with pytest.raises(OSError, match="pipe is a pipe, a socket or a device, not a file"):
            write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path, exists):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if exists:
        (folder / "target").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/target")
    save(tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "elsewhere/target"
    assert rewire.load_sparse(folder / "target").keys() == {"weight", "bias"}
    assert os.listdir(folder) == ["target"]
    write_json(tmp_path / "link", {"a": 1})
    assert (tmp_path / "link").is_symlink()
    assert "a" in (folder / "target").read_text()


def test_links_in_a_circle_and_links_to_a_pipe_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="a is a symbolic link that leads back to itself"):
        save(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "c").symlink_to("pipe")
    with pytest.raises(OSError, match="pipe is a pipe"):
        save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "pipe"]
