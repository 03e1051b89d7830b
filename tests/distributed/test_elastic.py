"""A rank that is killed in the middle of training: torchrun restarts, and the end is the same, bit by bit."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from examples.elastic import train
from tests.distributed.ranks import run

WORKER = Path(__file__).with_name("killed.py")
# One restart for the rank that is killed, and two for torch, which may abort when a process ends on a busy machine.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]


def torchrun(*arguments):
    # A store of its own for every attempt: otherwise restarted ranks may find the addresses of the dead ones in it.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(
        [*TORCHRUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        said, complaints = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its ranks
        said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    return said, complaints


def held(folder, steps):
    return [parameter.to_local().detach().clone() for parameter in train(folder, steps).parameters()]


def test_a_killed_rank_changes_nothing(tmp_path):
    said, complaints = torchrun(WORKER, tmp_path / "killed")
    assert "(exitcode: -9)" in complaints
    assert said.count("goes on from step 10") == 1
    killed = run(held, 2, tmp_path / "load", tmp_path / "killed", 20)  # nothing is left to do: what it ended with
    run(held, 2, tmp_path / "stop", tmp_path / "stopped", 10)
    resumed = run(held, 2, tmp_path / "resume", tmp_path / "stopped", 20)
    undisturbed = run(held, 2, tmp_path / "straight", tmp_path / "undisturbed", 20)
    for rank in range(2):
        for a, b, c in zip(killed[rank], resumed[rank], undisturbed[rank], strict=True):
            assert torch.equal(a, b)
            assert torch.equal(b, c)
