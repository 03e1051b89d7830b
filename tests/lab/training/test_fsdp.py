"""One run spread over ranks by FSDP2: the results of one process, and checkpoints that go on anywhere."""

import shutil

import pytest
import torch
from tests.distributed.ranks import run as on_ranks
from tests.film.films import plain

from rewire.film.format import read
from rewire.lab.cli.main import main
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.lab.training.ranks import RankGroup
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place

# The last batch has one image, of which one rank has none; SNFS keeps averages, which are spread as well.
RUN = Run(model="vgg-small", width=0.25, epochs=2, batch_size=33, limit=100, precision="float64", every=2, until=1.0)
RUNS = [RUN, Run(**(RUN.to_dict() | {"method": "snfs", "model": "mlp"}))]


def trained(folder, stop=None, fsdp=True):
    """All runs, each in its own folder; with ``stop`` they end as if interrupted after that epoch."""

    def report(event):
        if event["kind"] == "epoch" and event["epoch"] == stop:
            raise InterruptedError

    ranks = RankGroup(torch.distributed.get_rank(), torch.distributed.get_world_size(), fsdp)
    found = []
    for run in RUNS:
        try:
            found.append(train(run, folder / run.folder_name, Place(ranks=ranks), report))
        except InterruptedError:
            found.append(None)
    return found


def test_two_shards_have_the_results_of_one_process_and_go_on_anywhere(tmp_path):
    alone = [train(run, tmp_path / "alone" / run.folder_name) for run in RUNS]
    assert on_ranks(trained, 2, tmp_path / "a", tmp_path / "shards", 1) == [[None, None], [None, None]]
    for other in ("copies", "one"):
        shutil.copytree(tmp_path / "shards", tmp_path / other)
    results = on_ranks(trained, 2, tmp_path / "b", tmp_path / "shards")[1]
    copies = on_ranks(trained, 2, tmp_path / "c", tmp_path / "copies", None, False)[0]
    one = [train(run, tmp_path / "one" / run.folder_name) for run in RUNS]
    for expected, *found in zip(alone, results, copies, one, strict=True):
        assert len(expected["rewirings"]) >= 3
        for result in found:
            assert result["rewirings"] == expected["rewirings"]
            assert result["layers"] == expected["layers"]  # explored positions and empty neurons too
            assert result["accuracy"] == expected["accuracy"]
            assert result["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    for run in RUNS:
        files = [tmp_path / name / run.folder_name for name in ("alone", "shards")]
        assert len({(one / "topology.safetensors").read_bytes() for one in files}) == 1
        here, there = (checkpoints.load(one / "checkpoint.safetensors") for one in files)
        assert here["model"].keys() == there["model"].keys()
        for key, value in here["model"].items():
            torch.testing.assert_close(there["model"][key], value, rtol=1e-8, atol=1e-10)


def test_one_process_is_not_sharded(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--fsdp"])
    assert "torchrun --nproc-per-node" in capsys.readouterr().err


def filmed(folder, fsdp):
    ranks = RankGroup(torch.distributed.get_rank(), torch.distributed.get_world_size(), fsdp)
    train(RUN, folder, Place(ranks=ranks, film=True))


@pytest.mark.parametrize("fsdp", [False, True], ids=["copies", "shards"])
def test_the_film_of_several_ranks_is_that_of_one_process(tmp_path, fsdp):
    train(RUN, tmp_path / "alone", Place(film=True))
    on_ranks(filmed, 2, tmp_path / "ranks", tmp_path / "several", fsdp)
    alone, several = (read(tmp_path / name / "film.rewire") for name in ("alone", "several"))
    assert sum(line["kind"] == "rewiring" for line in alone) >= 3
    assert plain(several) == plain(alone)
    assert len(several) == len(alone)
