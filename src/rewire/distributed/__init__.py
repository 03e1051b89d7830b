"""Several ranks, one topology: DDP, where every rank holds a copy, and FSDP2, where each holds a shard.

``save``, ``load_latest`` and ``Loaded`` come from ``rewire.io.sharded``.
"""

from typing import Any


def __getattr__(name: str) -> Any:  # on first use: checkpoints rest on everything below them, this folder included
    if name in ("save", "load_latest", "Loaded"):
        from rewire.io import sharded

        return getattr(sharded, name)
    raise AttributeError(f"module 'rewire.distributed' has no attribute {name!r}")
