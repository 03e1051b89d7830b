"""The callbacks under their trainers' own DDP, in two processes with a time-out: one topology."""

import os
import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("two_processes.py")


def test_two_processes_end_with_one_topology(tmp_path):
    line = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(line, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    for trainer in ("lightning", "transformers"):
        first, second = (torch.load(tmp_path / trainer / f"rank-{rank}.pt") for rank in range(2))
        assert first["step"] == second["step"] >= 8
        assert first["rewirings"] == second["rewirings"] >= 3
        assert all(torch.equal(a, b) for a, b in zip(first["masks"], second["masks"], strict=True))
        assert sum(int(mask.sum()) for mask in first["masks"]) == round(0.2 * (16 * 24 + 24 * 4))
