"""Checkpoints as safetensors: tensors in the file, everything around them as JSON in its header. No pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rewire.lab.results import write_with


def save(path: Path, tree: Any) -> None:
    """Write nested dicts, lists, tuples, tensors and plain values, atomically."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(_encode(tree, tensors))
    write_with(path, lambda name: save_file(tensors, name, metadata={"tree": skeleton}))


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors under their own names, atomically."""
    write_with(path, lambda name: save_file(tensors, name))


def load(path: Path) -> Any:
    """Read what ``save`` wrote, on the CPU; a damaged file gets an error that names it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tree = json.loads((file.metadata() or {}).get("tree", "null"))
            if tree is None:
                raise ValueError("it was written by another program")
            return _decode(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a checkpoint of a run ({error}): remove it to begin the run anew") from error


def load_run(path: Path) -> Any:
    """The settings of the run that wrote a checkpoint, without its tensors; None if the file does not tell them."""
    try:
        with safe_open(str(path), framework="pt") as file:
            pairs = json.loads((file.metadata() or {})["tree"])["dict"]
        return next((_decode(value, {}) for key, value in pairs if key == "run"), None)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # `load` tells what is wrong with it


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The tree as JSON, tensors replaced by their names. Dicts become lists of pairs, because keys may be numbers."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = (
            value.detach().cpu().contiguous().clone()
        )  # a clone, because safetensors refuses tensors that share memory
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encode(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}")


def _decode(node: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in value}
    if kind == "plain":
        return value
    items = [_decode(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items
