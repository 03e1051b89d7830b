"""Several ranks, one topology: DDP, where every rank holds a copy, and FSDP2, where each holds a shard."""

from typing import Any


def __getattr__(name: str) -> Any:  # on first use, for it imports everything that is above the rest of this folder
    if name in ("save", "load_latest", "Loaded"):
        from rewire.distributed import saving

        return getattr(saving, name)
    raise AttributeError(f"module 'rewire.distributed' has no attribute {name!r}")
