"""Reading and writing networks: sparse and dense safetensors files, CSR, ONNX, and checkpoints of sharded models.

One module per file format. The names below are imported on first use: the command line reads ``rewire.io.files``
before it has to wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewire.io.csr_file import load_csr as load_csr
    from rewire.io.csr_file import save_csr as save_csr
    from rewire.io.csr_file import to_csr as to_csr
    from rewire.io.dense_file import save_dense as save_dense
    from rewire.io.metadata import read_metadata as read_metadata
    from rewire.io.onnx_file import save_onnx as save_onnx
    from rewire.io.sparse_file import load_sparse as load_sparse
    from rewire.io.sparse_file import save_sparse as save_sparse
    from rewire.io.structured import to_bsr as to_bsr
    from rewire.io.structured import to_semi_structured as to_semi_structured
    from rewire.io.structured import to_semi_structured_arrays as to_semi_structured_arrays

_MODULE_OF = {
    "load_csr": "csr_file",
    "save_csr": "csr_file",
    "to_csr": "csr_file",
    "save_dense": "dense_file",
    "read_metadata": "metadata",
    "save_onnx": "onnx_file",
    "load_sparse": "sparse_file",
    "save_sparse": "sparse_file",
    "to_bsr": "structured",
    "to_semi_structured": "structured",
    "to_semi_structured_arrays": "structured",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rewire.io' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rewire.io.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
