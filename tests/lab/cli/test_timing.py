"""Seconds of runs from a few of their steps, and the dry run that prints them."""

import pytest

from rewire.lab.cli.main import main
from rewire.lab.cli.timing import seconds_of
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place


def test_seconds_grow_with_epochs_and_seeds_are_timed_once():
    short, same, long = (Run(model="mlp", epochs=epochs, seed=seed) for epochs, seed in ((2, 0), (2, 1), (40, 0)))
    seconds = seconds_of([short, same, long], Place())
    assert seconds[short.id] == seconds[same.id] > 0
    assert seconds[long.id] > 3 * seconds[short.id]


def test_a_dry_run_prints_seconds_if_asked(capsys):
    command = ["sweep", "recovery", "--dry-run", "--set", "model=mlp"]
    main([*command, "--measure"])
    printed = capsys.readouterr().out
    assert "s a run" in printed
    assert "core-hours" in printed.splitlines()[-3]
    main(command)
    assert "core-hours" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sweep", "recovery", "--measure"])
    assert "--measure is for --dry-run" in capsys.readouterr().err
