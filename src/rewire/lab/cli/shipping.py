"""``rewire shrink`` and ``rewire export``: from a run to a file that others can use."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from rewire.io import load_sparse, save_csr, save_dense, save_onnx, save_sparse
from rewire.io.compare import compare_outputs
from rewire.io.files import write_checked
from rewire.io.sparse_file import sparse_dictionary
from rewire.lab.cli import arguments as cli
from rewire.lab.cli.terminal import console
from rewire.lab.training.network import Trained, read_network
from rewire.shrinking.shrink import shrink_with_report

# The formats of ``rewire export``: how the file's name must end, and what writes it.
WRITERS: dict[str, tuple[str, Callable[..., None]]] = {
    "dense": (".safetensors", save_dense),
    "safetensors": (".safetensors", save_sparse),
    "csr": (".npz", save_csr),
    "onnx": (".onnx", save_onnx),
}


def shrink(command: "cli.Shrink", words: str) -> None:
    """Write the smaller network, and show what became smaller."""
    refuse_suffix(command.out, (".safetensors", ".pt"))
    trained = read_network(command.network)
    small, report = shrink_with_report(trained.model, trained.example, packed=command.packed)
    small.eval()
    about = input_metadata(trained)

    def check(file: Path) -> None:
        """Load the file into a new network, as a user would."""
        source = torch.load(file, weights_only=True) if command.out.suffix == ".pt" else file
        again = trained.built().eval()
        load_sparse(source, again, packed=command.packed)
        with torch.no_grad():
            compare_outputs(small(trained.example), again(trained.example))

    write = (
        partial(_save_pt, small, command.packed, about)
        if command.out.suffix == ".pt"
        else partial(save_sparse, small, metadata=about)
    )
    write_checked(command.out, write, check)
    console.print(str(report), highlight=False, soft_wrap=True)
    console.print(f"same function: {report.difference:.1e} apart at most, relative, in float64", highlight=False)
    _show_size(command.out)


def _save_pt(model: nn.Module, packed: bool, metadata: dict[str, str], path: Path) -> None:
    """A file for ``torch.load(path, weights_only=True)``; ``rewire.load_sparse`` takes what that returns."""
    torch.save(sparse_dictionary(model, compressed=packed, metadata=metadata), path)


def export(command: "cli.Export", words: str) -> None:
    """Write a file in the format that was asked for."""
    suffix, write = WRITERS[command.to]
    refuse_suffix(command.out, (suffix,))
    trained = read_network(command.network)
    model = shrink_with_report(trained.model, trained.example)[0] if command.shrink else trained.model
    write(model, command.out, trained.example, metadata=input_metadata(trained))
    _show_size(command.out)


def input_metadata(trained: Trained) -> dict[str, str]:
    """How inputs are to be prepared, for the metadata of a file: ``(x / scale - mean) / std`` for each channel."""
    data = trained.data
    about = {"image": data["image"], "scale": data["scale"], "mean": data["mean"], "std": data["std"]}
    run = trained.run.to_dict()
    for code in run.get("code", []):
        code["path"] = Path(code["path"]).name  # where it lies on this machine is nobody else's business
    return {"input": json.dumps(about), "run": json.dumps(run)}


def refuse_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Raise if the name of a file does not say what is in it."""
    if path.suffix not in suffixes:
        raise ValueError(f"-o {path} must end in {' or '.join(suffixes)}")


def _show_size(path: Path) -> None:
    console.print(f"{path}: {path.stat().st_size:,} bytes, read back and compared", highlight=False, soft_wrap=True)
