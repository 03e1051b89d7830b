"""Sparse files: the values and positions of the weights that exist, as safetensors with a checksum. No pickle.

A file is read back and compared before it gets its name. A reader trusts nothing in a file: the checksum is verified,
sizes are checked before memory is allocated, positions before they are used.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from rewire._torch import parameters_of
from rewire.io.compare import compare_networks, compare_tensors, state_on_cpu
from rewire.io.csr import compress, decompress
from rewire.io.files import (
    CHECKSUM,
    DamagedFileError,
    checksum,
    first_line,
    read_tensors,
    verify_checksum,
    write_checked,
    write_tensors,
)
from rewire.model.resize import resize, sizes
from rewire.model.select import unwrap
from rewire.model.state_names import mask_name, masks_in, topology_names, without_masks
from rewire.nn.packed import Packed
from rewire.stores.convert import pack_masked, to_masked, unpack

FORMAT = "rewire-sparse-2"  # 1 had no checksum


def save_sparse(
    model: nn.Module, path: str | Path, example: Tensor | None = None, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the weights that exist with their positions, and all other tensors; ``load_sparse`` reads the file.

    With an ``example``, the network that was read back must also compute the same outputs for it. ``metadata`` is kept
    in the file (``rewire.io.read_metadata`` reads it), such as how inputs are to be normalised.
    """
    masked = to_masked(model)
    state = state_on_cpu(masked)
    tensors, shapes = compress(state)
    own = {"format": FORMAT, "shapes": json.dumps(shapes), "sizes": json.dumps(sizes(masked))}

    def check(file: Path) -> None:
        read = load_sparse(file)
        compare_tensors(state, read)
        compare_networks(masked, read, example)

    write_checked(path, lambda file: write_tensors(file, tensors, {**(metadata or {}), **own}), check)


def sparse_dictionary(
    model: nn.Module, *, compressed: bool, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a sparse file holds as a dictionary for ``torch.save``; ``load_sparse`` takes it.

    ``compressed=False`` keeps the masked weights dense, beside their masks.
    """
    state = to_masked(model).state_dict()
    tensors, shapes = compress(state) if compressed else (dict(state), {})
    plain = {**(metadata or {}), "format": FORMAT, "shapes": shapes, "sizes": sizes(model)}
    return {**plain, "model": tensors, CHECKSUM: checksum(tensors, _metadata(plain))}


def load_sparse(
    source: str | Path | Mapping[str, Any], model: nn.Module | None = None, *, packed: bool = False
) -> dict[str, Tensor]:
    """The ``state_dict`` of a file that ``save_sparse`` or ``save_dense`` wrote; with a model, loaded into it as well.

    A model without masks is given none, and a model of other sizes (the file holds a shrunk network) is resized first.
    With ``packed=True``, or if the model is packed, its sparse layers keep only the weights that exist. The file
    that ``rewire shrink -o small.pt`` wrote is passed as ``torch.load("small.pt", weights_only=True)``.

    A damaged or malicious file raises a ``ValueError`` that names it; nothing in it is executed. A file of an earlier
    version has no checksum and is read with a warning.
    """
    name = "this dictionary" if isinstance(source, Mapping) else str(source)
    try:
        content = _read(source)
        state = decompress(content.tensors, content.shapes)
    except (FileNotFoundError, DamagedFileError):
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} is not a sparse network: {first_line(error)}. Write it anew") from error
    if model is not None:
        inner = unwrap(model)
        packed = packed or any(isinstance(module, Packed) for module in inner.modules())
        try:
            load_into(inner, state, content.sizes, packed)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{name} is of another model than {type(inner).__name__}: {error}") from error
    return state


class _Content(NamedTuple):
    """What a sparse file holds, before its weights are decompressed."""

    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, Any]  # dense shapes of the compressed weights
    sizes: Mapping[str, Any]  # what modules remember about their sizes, such as in_features


def _read(source: str | Path | Mapping[str, Any]) -> _Content:
    if isinstance(source, Mapping):
        verify_checksum("this dictionary", source["model"], _metadata(source), source.get(CHECKSUM))
        return _Content(source["model"], source.get("shapes", {}), source["sizes"])
    tensors, metadata = read_tensors(Path(source))
    return _Content(tensors, json.loads(metadata.get("shapes", "{}")), json.loads(metadata.get("sizes", "{}")))


def _metadata(content: Mapping[str, Any]) -> dict[str, str]:
    """The plain values of a dictionary as text, which the checksum covers."""
    plain = {key: value for key, value in content.items() if key not in ("model", CHECKSUM)}
    return {key: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for key, value in plain.items()}


def load_into(model: nn.Module, state: Mapping[str, Tensor], module_sizes: Mapping[str, Any], packed: bool) -> None:
    """Load a ``state_dict`` into a model, which takes its sizes and, if it is to be packed, its topology.

    In a model that is packed already, layers that are masked stay so.
    """
    _refuse_other_names(model, state)
    packed_before = [module for module in model.modules() if isinstance(module, Packed)]
    unpack(model)
    if packed:
        for name, mask in masks_in(state).items():
            path, _, parameter = name.rpartition(".")
            model.get_submodule(path).register_buffer(mask_name(parameter), mask.clone())
    known = model.state_dict()
    loaded = without_masks(state) | {name: tensor for name, tensor in state.items() if name in known}
    resize(model, loaded, module_sizes)
    model.load_state_dict(loaded)
    if packed:
        pack_masked(model, packed_before or None)


def _refuse_other_names(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise, before anything is changed, if the file and the model do not have the same names.

    Topology is left out of the comparison, and the file may have a bias that the model does not have yet.
    """
    tensors = model.state_dict()
    in_model, in_file = tensors.keys() - topology_names(tensors), state.keys() - topology_names(state)
    absent = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, parameter in parameters_of(module).items()
        if parameter is None
    }
    for names, sentence in ((in_model - in_file, "it has no"), (in_file - in_model - absent, "the model has no")):
        if names:
            raise ValueError(f"{sentence} {', '.join(sorted(names)[:3])}{' ...' if len(names) > 3 else ''}")
