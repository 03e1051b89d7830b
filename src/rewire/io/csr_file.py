"""CSR files: one compressed-sparse-row matrix per sparse layer in a NumPy archive, for NumPy, SciPy and torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rewire.io.compare import compare_networks, compare_tensors, state_on_cpu
from rewire.io.csr import csr_arrays, csr_tensor
from rewire.io.files import first_line, write_checked
from rewire.model.state_names import masks_in
from rewire.stores.convert import to_masked

METADATA = "metadata/"  # how the names of texts begin


def to_csr(model: nn.Module) -> dict[str, Tensor]:
    """Each sparse weight as a ``torch.sparse_csr`` matrix with one row for each index of its first dimension.

    Those are the outputs of Linear and Conv layers; GPT-2's ``Conv1D`` and transposed convolutions have inputs first.
    Entries are the weights that exist by topology, so an active weight whose value is zero is stored.
    """
    state = state_on_cpu(to_masked(model))
    matrices = {}
    for name, mask in masks_in(state).items():
        row_ptr, col_idx, values = csr_arrays(state[name], mask)
        matrices[name] = csr_tensor(row_ptr, col_idx, values, (len(mask), mask[0].numel()))
    return matrices


def save_csr(
    model: nn.Module, path: str | Path, example: Tensor | None = None, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write ``NAME/data``, ``NAME/indices``, ``NAME/indptr`` and ``NAME/shape`` for each sparse layer ``NAME``.

    With an ``example``, the network that was read back must also compute the same outputs for it. ``metadata`` is kept
    as text under ``metadata/KEY`` (``rewire.io.read_metadata`` reads it).
    """
    matrices = to_csr(model)
    if not matrices:
        raise ValueError("the model has no masked weight: there is nothing to write as CSR. Use --to dense")
    arrays: dict[str, Any] = {f"{METADATA}{key}": np.array(text) for key, text in (metadata or {}).items()}
    for name, matrix in matrices.items():
        values = matrix.values()
        arrays[f"{name}/data"] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        arrays[f"{name}/indices"] = matrix.col_indices().int().numpy()
        arrays[f"{name}/indptr"] = matrix.crow_indices().int().numpy()
        arrays[f"{name}/shape"] = np.array(matrix.shape, dtype=np.int64)

    def write(path: Path) -> None:
        with path.open("wb") as file:  # np.savez would add .npz to the name
            np.savez_compressed(file, **arrays)

    def check(file: Path) -> None:
        read = load_csr(file)
        for part in (Tensor.crow_indices, Tensor.col_indices, Tensor.values):
            dtype = torch.float64 if part is Tensor.values else torch.int64
            compare_tensors(
                {name: part(matrix).to(dtype) for name, matrix in matrices.items()},
                {name: part(matrix).to(dtype) for name, matrix in read.items()},
            )
        masked = to_masked(model)
        state = masked.state_dict()
        dense = {name: matrix.to_dense().view(state[name].shape) for name, matrix in read.items()}
        compare_networks(masked, state | dense, example)

    write_checked(path, write, check)


def load_csr(path: str | Path) -> dict[str, Tensor]:
    """The matrices of ``save_csr``. SciPy takes the same arrays: ``csr_array((data, indices, indptr), shape)``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [key.removesuffix("/data") for key in file.files if key.endswith("/data")]
            if not names:
                raise ValueError("it holds no arrays NAME/data")
            matrices = {}
            for name in names:
                row_ptr, col_idx, values = (
                    torch.from_numpy(file[f"{name}/{key}"]) for key in ("indptr", "indices", "data")
                )
                matrices[name] = csr_tensor(row_ptr, col_idx, values, tuple(file[f"{name}/shape"].tolist()))
        return matrices
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds; none of them runs what is in the file
        raise ValueError(f"{path} does not hold CSR matrices: {first_line(error)}. Write it anew") from error
