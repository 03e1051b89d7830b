"""Dense files: a plain ``state_dict`` as safetensors, zeros included, for any tool that reads safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from rewire.io.compare import compare_networks, compare_tensors, state_on_cpu
from rewire.io.files import read_tensors, write_checked, write_tensors
from rewire.model.resize import sizes
from rewire.model.state_names import without_masks
from rewire.stores.convert import to_masked

FORMAT = "rewire-dense-2"


def save_dense(
    model: nn.Module, path: str | Path, example: Tensor | None = None, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write all weights, zeros included, without masks. ``rewire.load_sparse`` reads the file too.

    With an ``example``, the network that was read back must also compute the same outputs for it. ``metadata`` is kept
    in the file (``rewire.io.read_metadata`` reads it).
    """
    masked = to_masked(model)
    state = without_masks(state_on_cpu(masked))
    own = {"format": FORMAT, "sizes": json.dumps(sizes(masked))}

    def check(file: Path) -> None:
        read, _ = read_tensors(file)
        compare_tensors(state, read)
        compare_networks(masked, read, example)

    write_checked(path, lambda file: write_tensors(file, state, {**(metadata or {}), **own}), check)
