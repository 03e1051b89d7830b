"""The texts that a writer kept in a file beside the network, whatever the format of the file."""

from pathlib import Path

import numpy as np

from rewire._extras import need
from rewire.io.csr_file import METADATA
from rewire.io.files import first_line, read_tensors


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a file that ``save_sparse``, ``save_dense``, ``save_csr`` or ``save_onnx`` wrote."""
    file = Path(path)
    if file.suffix == ".npz":
        return _of_arrays(file)
    if file.suffix == ".onnx":
        need("onnx", "onnx")
        import onnx  # imported here: only files of this kind need it

        return {entry.key: entry.value for entry in onnx.load(str(file), load_external_data=False).metadata_props}
    return read_tensors(file)[1]


def _of_arrays(path: Path) -> dict[str, str]:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [name for name in file.files if name.startswith(METADATA)]
            return {name.removeprefix(METADATA): str(file[name]) for name in names}
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds; none of them runs what is in the file
        raise ValueError(f"{path} cannot be read: {first_line(error)}. Write it anew") from error
