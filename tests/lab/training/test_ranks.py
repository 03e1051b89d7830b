"""One run on several ranks: the results of one process, one writer, and resume after a killed rank."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from tests.distributed.ranks import run as on_ranks
from torch import nn

from rewire.lab.results import read_metrics
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.lab.training.ranks import RankGroup, SharedBatchNorm2d
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Trainer

# 100 images in batches of 33: parts of 16 and 17 images, and a last batch of one image, of which one rank has none.
RUN = Run(model="vgg-small", width=0.25, epochs=2, batch_size=33, limit=100, precision="float64", every=2, until=1.0)


def here():
    return RankGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())


def trained(run, folder, stop=None):
    def report(event):
        if event["kind"] == "epoch" and event["epoch"] == stop:
            raise InterruptedError

    try:
        return train(run, folder, Place(ranks=here()), report)
    except InterruptedError:
        return None


def test_two_ranks_have_the_topology_and_the_numbers_of_one(tmp_path):
    run = replace(RUN, record_losses=True)
    alone = train(run, tmp_path / "alone")
    results = on_ranks(trained, 2, tmp_path / "ranks", run, tmp_path / "two")
    assert len(alone["rewirings"]) >= 3
    for result in results:
        assert result["rewirings"] == alone["rewirings"]
        assert result["layers"] == alone["layers"]
        assert result["accuracy"] == alone["accuracy"]
        assert result["loss"] == pytest.approx(alone["loss"], rel=1e-9)
        assert result["environment"]["ranks"] == 2
    losses, others = ([line["losses"] for line in read_metrics(tmp_path / name)] for name in ("alone", "two"))
    assert [len(epoch) for epoch in losses] == [4, 4]
    for epoch, other in zip(losses, others, strict=True):
        assert other == pytest.approx(epoch, abs=2e-5)  # of whole batches, rounded to five digits
    topologies = [tmp_path / name / "topology.safetensors" for name in ("alone", "two")]
    assert topologies[0].read_bytes() == topologies[1].read_bytes()
    one, two = (checkpoints.load(tmp_path / name / "checkpoint.safetensors")["model"] for name in ("alone", "two"))
    assert one.keys() == two.keys()
    for key in one:  # running statistics of the whole batch too
        torch.testing.assert_close(two[key], one[key], rtol=1e-8, atol=1e-10)


def test_an_interrupted_run_goes_on_bit_for_bit_and_on_one_rank_too(tmp_path):
    whole = on_ranks(trained, 2, tmp_path / "a", RUN, tmp_path / "whole")[0]
    assert on_ranks(trained, 2, tmp_path / "b", RUN, tmp_path / "parts", 1) == [None, None]
    (tmp_path / "copy").mkdir()
    for name in ("run.json", "metrics.jsonl", "checkpoint.safetensors"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / "parts" / name).read_bytes())
    resumed = on_ranks(trained, 2, tmp_path / "c", RUN, tmp_path / "parts")[0]
    assert resumed["loss"] == whole["loss"]
    files = [(tmp_path / name / "topology.safetensors").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]
    assert train(RUN, tmp_path / "copy")["loss"] == pytest.approx(whole["loss"], rel=1e-9)


def refusals(folder):
    said = []
    for run in (replace(RUN, store="packed"), replace(RUN, model="vgg16")):
        try:
            train(run, folder, Place(ranks=here()))
        except ValueError as error:
            said.append(str(error))
    try:
        here().on_first(lambda: (folder / "missing").read_text())
    except (OSError, RuntimeError) as error:
        said.append(str(error))
    return said


def test_all_ranks_refuse_and_none_waits(tmp_path):
    for said in on_ranks(refusals, 2, tmp_path / "ranks", tmp_path / "run"):
        assert "packed store cannot be shared by several ranks" in said[0]
        assert "vgg16" in said[1]
        assert "No such file" in said[2]


def normed(x, weight):
    module = nn.BatchNorm2d(3)
    module.__class__ = SharedBatchNorm2d
    module.double()
    mine = x[here().part(len(x))].clone().requires_grad_()
    out = module(mine)
    (out * weight[here().part(len(x))]).sum().backward()
    grads = torch.cat([module.weight.grad, module.bias.grad])
    torch.distributed.all_reduce(grads)
    return out.detach(), mine.grad, grads, module.running_mean, module.running_var


def test_shared_batch_norm_is_batch_norm_of_the_whole_batch(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(5, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    module, whole = nn.BatchNorm2d(3).double(), x.clone().requires_grad_()
    out = module(whole)
    (out * weight).sum().backward()
    found = on_ranks(normed, 2, tmp_path, x, weight)
    torch.testing.assert_close(torch.cat([one[0] for one in found]), out.detach())
    torch.testing.assert_close(torch.cat([one[1] for one in found]), whole.grad)
    for _, _, grads, mean, variance in found:
        torch.testing.assert_close(grads, torch.cat([module.weight.grad, module.bias.grad]))
        torch.testing.assert_close((mean, variance), (module.running_mean, module.running_var))


def test_a_group_of_one_trains_as_before():
    trainer = Trainer(RUN, Place())
    assert trainer.parallel_model is trainer.model
    assert not [module for module in trainer.model.modules() if isinstance(module, SharedBatchNorm2d)]


TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "1",
]


def rank_one(folder):
    """The process that is rank 1 of the training in this folder."""
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if b"LOCAL_RANK=1" in variables and f"REWIRE_TEST={folder}".encode() in variables:
                return int(name)
        except OSError:
            continue
    raise AssertionError("rank 1 is not there")


def test_torchrun_restarts_after_a_killed_rank_and_the_run_goes_on(tmp_path):
    words = ["--model", "mlp", "--epochs", "30", "--batch-size", "16", "--limit", "200", "--out", str(tmp_path / "run")]
    environment = os.environ | {"REWIRE_TEST": str(tmp_path), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted ranks may find dead addresses in it
    with subprocess.Popen(
        [*TORCHRUN, "-m", "rewire.lab", "train", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as training:
        try:
            end = time.monotonic() + 100
            while not (tmp_path / "run" / "metrics.jsonl").exists():
                assert training.poll() is None, training.stdout.read()
                assert time.monotonic() < end, "it took too long"
                time.sleep(0.02)
            os.kill(rank_one(tmp_path), signal.SIGKILL)
            said, _ = training.communicate(timeout=100)
        finally:
            training.kill()
    assert training.returncode == 0, said
    assert said.count("written to") == 1  # rank 0 alone
    lines = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, 31))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["environment"]["ranks"] == 2


def test_torchrun_with_a_method_of_ones_own(tmp_path):
    body = "return rewire.set_(density=density, every=every, until=until)"
    source = f"import rewire\ndef mine(*, density, every, until):\n    {body}\n"
    (tmp_path / "mine.py").write_text(source)
    words = ["--method", "mine.py:mine", "--model", "mlp", "--epochs", "2", "--limit", "100", "--out", "run"]
    environment = os.environ | {"REWIRE_TEST": str(tmp_path), "OMP_NUM_THREADS": "1"}
    line = [*TORCHRUN, "-m", "rewire.lab", "train", *words]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["run"]["method"] == "mine.py:mine"
    assert about["run"]["code"][0]["path"] == str(tmp_path / "mine.py")
    assert about["environment"]["ranks"] == 2
