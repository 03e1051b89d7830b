"""``rewire train --film`` and ``rewire watch``."""

import subprocess
import sys
import time
import urllib.request

import pytest

from rewire.film.format import read
from rewire.lab.cli.main import main

TRAIN = ["train", "--model", "mlp", "--epochs", "3", "--limit", "300", "--until", "1.0", "--film"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("film") / "run"
    main([*TRAIN, "--out", str(folder)])
    return folder


def test_a_run_records_its_rewirings_and_metrics(run):
    lines = read(run / "film.rewire")
    assert [line["kind"] for line in lines].count("metrics") == 3
    assert [line["kind"] for line in lines].count("rewiring") >= 1
    assert {"loss", "accuracy"} <= lines[-1].keys()


def test_a_film_is_saved_as_one_page(run, tmp_path, capsys):
    main(["watch", str(run), "--save", str(tmp_path / "film.html")])
    assert "rewire-film-2" in (tmp_path / "film.html").read_text()
    assert "written to" in capsys.readouterr().out


def test_the_page_is_served_until_it_is_interrupted(run):
    words = [sys.executable, "-m", "rewire.lab", "watch", str(run), "--port", "8700"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"Watch a network rewire itself" in answer.read()
        time.sleep(0.1)
        server.terminate()


def test_a_folder_without_a_film_gets_a_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["watch", str(tmp_path)])
    assert end.value.code == 2
    assert "holds no film" in capsys.readouterr().err
