"""How many threads a native kernel may use.

The threads of OpenMP do not survive ``fork``: a child that starts a parallel region with the pool of its parent waits
for threads that do not exist. So kernels run on one thread in a forked child. Processes that should use more have to be
started with ``spawn`` or ``forkserver``.
"""

import os

import torch

_FORKED = False


def _in_child() -> None:
    global _FORKED
    _FORKED = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def thread_count() -> int:
    """The number of threads of torch; one in a forked child."""
    return 1 if _FORKED else torch.get_num_threads()
