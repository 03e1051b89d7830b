"""``rewire inspect``, ``rewire shrink`` and ``rewire export``: from a run to a network that others can use."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor, nn

from rewire.analysis.density import LayerDensity, densities, masks
from rewire.analysis.flops import macs, positions
from rewire.analysis.overlap import Overlap, overlap, unpacked_bits
from rewire.io import load_sparse, save_csr, save_dense, save_onnx, save_sparse
from rewire.io.compare import compare_outputs
from rewire.io.files import write_checked
from rewire.io.sparse_file import sparse_dictionary
from rewire.lab.cli import arguments as cli
from rewire.lab.report.network_figures import draw
from rewire.lab.run import DENSE
from rewire.lab.training.network import Trained, read_network
from rewire.lab.training.recipe import method_of
from rewire.lab.training.train import training_flops
from rewire.rewirer.state import history_from
from rewire.shrinking.shrink import shrink_with_report

console = Console()
TOTALS = ("weights", "nnz", "neurons", "empty_neurons", "inputs", "empty_inputs", "remaining")


def inspect(command: "cli.Inspect", words: str) -> None:
    """Figures of a network, as a table or JSON."""
    trained = read_network(command.network)
    found = figures(trained, read_network(command.against) if command.against else None)
    drawn = draw(trained, command.pictures) if command.pictures else []
    if command.json:
        print(json.dumps(found, indent=1))
        return
    table = _table(found)
    width = Measurement.get(console, console.options.update_width(1000), table).maximum
    Console(width=max(width, console.width)).print(table)  # too wide for a terminal is better than cut
    cost, total, run = found["flops"], found["total"], trained.run
    console.print(f"\n[bold]{run.label}[/], {found['steps']:,} steps", highlight=False)
    console.print(f"inference  {cost['inference']:,} multiply-adds, {cost['ratio']:.3f} of dense")
    console.print(f"training   {cost['training_ratio']:.3f} of the multiply-adds of dense training, in as many steps")
    if total["explored"] is not None:
        share = total["explored"] / total["weights"]
        console.print(f"explored   {total['explored']:,} positions were ever active, {share:.2%}", highlight=False)
    if command.against:
        sentence = f"{total['kept']:.2%} of the weights of {command.against}, Jaccard {total['jaccard']:.3f}"
        console.print(f"kept       {sentence}", highlight=False, soft_wrap=True)
    if drawn:
        console.print(f"pictures   {len(drawn)} files in {command.pictures}", soft_wrap=True, highlight=False)


def figures(trained: Trained, other: Trained | None = None) -> dict[str, Any]:
    """Everything that ``inspect`` tells, as plain data."""
    layers = densities(trained.model)
    nnz = {one.spec.name: one.nnz for one in layers}
    dense = {one.spec.name: one.spec.numel for one in layers}
    applied = positions(trained.model, trained.example[:1])
    history = history_from(trained.state["rewirer"]["history"]) if trained.state["rewirer"] else []
    method = method_of(trained.run, trained.steps) if trained.run.method != DENSE else None
    steps = len(trained.state["metrics"]) * trained.steps
    explored = _explored(trained, layers)
    rows = [_row(one, applied) | {"explored": explored.get(one.spec.name)} for one in layers]
    found: dict[str, Any] = {
        "run": trained.run.to_dict(),
        "steps": steps,
        "layers": rows,
        "total": {key: sum(row[key] for row in rows) for key in (*TOTALS, "macs")},
        "flops": {
            "inference": macs(nnz, applied),
            "dense": macs(dense, applied),
            "ratio": macs(nnz, applied) / macs(dense, applied),
            **training_flops(trained.state["initial"], dense, applied, history, steps, method),
        },
    }
    found["total"] |= {"density": found["total"]["nnz"] / found["total"]["weights"]}
    found["total"] |= {"explored": sum(explored.values()) or None}
    if other is not None:
        _add_overlap(found, overlap(masks(other.model), masks(trained.model)))
    return found


def _row(one: LayerDensity, applied: dict[str, int]) -> dict[str, Any]:
    shape = list(one.spec.shape)
    known = {"name": one.spec.name, "shape": shape, "weights": one.spec.numel, "nnz": one.nnz, "density": one.density}
    return known | asdict(one.units) | {"macs": one.nnz * applied.get(one.spec.name, 0)}


def _explored(trained: Trained, layers: list[LayerDensity]) -> dict[str, int]:
    """How many positions of each layer were ever active; nothing if the checkpoint does not tell."""
    if trained.run.method == DENSE:
        return {one.spec.name: one.nnz for one in layers}
    bits = trained.state.get("explored") or {}
    return {
        one.spec.name: int(unpacked_bits(bits[one.spec.name], one.spec.shape).sum())
        for one in layers
        if one.spec.name in bits
    }


def _add_overlap(found: dict[str, Any], shared: dict[str, Overlap]) -> None:
    """How much of another topology is still there, in each layer and in all of them."""
    whole = Overlap(*(sum(getattr(one, key) for one in shared.values()) for key in ("before", "after", "both")))
    for row, one in zip((*found["layers"], found["total"]), (*shared.values(), whole), strict=True):
        row |= {"kept": one.kept, "jaccard": one.jaccard}


def _table(found: dict[str, Any]) -> Table:
    """A row per layer. What is not known of any layer has no column."""
    columns = {
        "density": lambda row: f"{row['density']:.4f}",
        "weights": lambda row: f"{row['nnz']:,}",
        "explored": lambda row: f"{row['explored'] / row['weights']:.4f}",
        "kept": lambda row: f"{row['kept']:.4f}",
        "empty neurons": lambda row: f"{row['empty_neurons']:,} of {row['neurons']:,}",
        "empty inputs": lambda row: f"{row['empty_inputs']:,} of {row['inputs']:,}",
        "left": lambda row: f"{row['remaining']:,}",
        "mult-adds": lambda row: f"{row['macs']:,}",
    }
    total = found["total"] | {"name": "total", "shape": []}
    if total["explored"] is None:
        del columns["explored"]
    if "kept" not in total:
        del columns["kept"]
    table = Table("layer", "shape", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in (*found["layers"], total):
        cells = (show(row) for show in columns.values())
        table.add_row(row["name"], "x".join(map(str, row["shape"])), *cells, style="bold" if row is total else "")
    return table


def shrink(command: "cli.Shrink", words: str) -> None:
    """A smaller file, and what became smaller."""
    if command.out.suffix not in (".safetensors", ".pt"):
        raise ValueError(f"-o {command.out} must end in .safetensors or .pt")
    trained = read_network(command.network)
    small, report = shrink_with_report(trained.model, trained.example, packed=command.packed)
    small.eval()

    def check(file: Path) -> None:
        """Into a network that was just built, as a user would."""
        source = torch.load(file, weights_only=True) if command.out.suffix == ".pt" else file
        again = trained.built().eval()
        load_sparse(source, again, packed=command.packed)
        with torch.no_grad():
            compare_outputs(small(trained.example), again(trained.example))

    write = partial(_save_pt, small, command.packed) if command.out.suffix == ".pt" else partial(save_sparse, small)
    write_checked(command.out, write, check)
    console.print(str(report), highlight=False, soft_wrap=True)
    console.print(f"same function: {report.difference:.1e} apart at most, relative, in float64", highlight=False)
    _told(command.out)


def _save_pt(model: nn.Module, packed: bool, path: Path) -> None:
    """A file for ``torch.load(path, weights_only=True)``; ``rewire.load_sparse`` takes what that returns."""
    torch.save(sparse_dictionary(model, compressed=packed), path)


def export(command: "cli.Export", words: str) -> None:
    """A file in the format that was asked for."""
    trained = read_network(command.network)
    model = shrink_with_report(trained.model, trained.example)[0] if command.shrink else trained.model
    writers: dict[str, Callable[[nn.Module, Path, Tensor], None]]
    writers = {"dense": save_dense, "csr": save_csr, "safetensors": save_sparse, "onnx": save_onnx}
    writers[command.to](model, command.out, trained.example)
    _told(command.out)


def _told(path: Path) -> None:
    console.print(f"{path}: {path.stat().st_size:,} bytes, read back and compared", highlight=False, soft_wrap=True)
