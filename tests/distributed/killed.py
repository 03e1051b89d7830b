"""Started by torchrun in a test: the example, in which rank 1 is killed in the middle, the first time."""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.elastic import train


def kill(step):
    if step == 13 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = train(Path(sys.argv[1]), 20, on_step=kill)
    dist.barrier()
    dist.destroy_process_group()
