"""Run a function on several ranks, each a process of its own, with a time-out: a rank that hangs fails the test.

The processes are forked from a server that has imported torch once, so that starting them costs little.
"""

import multiprocessing
import pickle
import time
import traceback
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
_PRELOAD = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.checkpoint")
_context.set_forkserver_preload([*_PRELOAD, "rewire.attach"])


def run(function, size, folder, *args, timeout=150):
    """What ``function(*args)`` returned on each of ``size`` ranks. Raises if one of them raised, or took too long."""
    folder.mkdir(exist_ok=True)
    processes = [
        _context.Process(target=_rank, args=(function, i, size, folder, args), daemon=True) for i in range(size)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + 5)  # one has failed: the others wait in vain
        time.sleep(0.01)
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in late:
        processes[rank].kill()
    for process in processes:
        process.join()
    said = [(folder / f"{rank}.failed") for rank in range(size)]
    failed = [f"rank {rank}:\n{path.read_text()}" for rank, path in enumerate(said) if path.exists()]
    if failed or late:
        pytest.fail("\n".join([*failed, *(f"rank {rank} did not finish in time" for rank in late)]))
    return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(size)]


def _rank(function, rank, size, folder, args):
    torch.set_num_threads(1)
    warnings.filterwarnings("error", module="rewire")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    try:
        result = function(*args)
        (folder / f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:
        (folder / f"{rank}.failed").write_text(traceback.format_exc())
        raise SystemExit(1) from None
    dist.destroy_process_group()
