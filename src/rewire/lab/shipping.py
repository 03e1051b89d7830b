"""``rewire inspect``, ``rewire shrink`` and ``rewire export``: from a run to a network that others can use."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from rewire.analysis.density import LayerDensity, densities, masks
from rewire.analysis.flops import macs, positions
from rewire.analysis.overlap import overlap
from rewire.checkpoint import history_from
from rewire.export import save_csr, save_dense, save_onnx, save_sparse
from rewire.lab import cli
from rewire.lab.network import Trained, read_network
from rewire.lab.pictures import draw
from rewire.lab.run import DENSE
from rewire.lab.train import method_of, training_flops
from rewire.resize import sizes
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
    console.print(_table(found))
    cost, run = found["flops"], trained.run
    console.print(f"\n[bold]{run.label}[/], {found['steps']:,} steps", highlight=False)
    console.print(f"inference  {cost['inference']:,} multiply-adds, {cost['ratio']:.3f} of dense")
    console.print(f"training   {cost['training_ratio']:.3f} of the multiply-adds of dense training, in as many steps")
    if command.against:
        kept = found["overlap"]["total"]
        console.print(
            f"overlap    {kept['kept']:.2%} of the weights of {command.against}, Jaccard {kept['jaccard']:.3f}"
        )
    for path in drawn:
        console.print(f"picture    {path}", soft_wrap=True, highlight=False)


def figures(trained: Trained, other: Trained | None = None) -> dict[str, Any]:
    """Everything that ``inspect`` tells, as plain data."""
    layers = densities(trained.model)
    nnz = {one.spec.name: one.nnz for one in layers}
    dense = {one.spec.name: one.spec.numel for one in layers}
    applied = positions(trained.model, trained.example[:1])
    history = history_from(trained.state["rewirer"]["history"]) if trained.state["rewirer"] else []
    ranks = method_of(trained.run, trained.steps).ranks if trained.run.method != DENSE else frozenset()
    steps = len(trained.state["metrics"]) * trained.steps
    rows = [_row(one, applied) for one in layers]
    found: dict[str, Any] = {
        "run": trained.run.to_dict(),
        "steps": steps,
        "layers": rows,
        "total": {key: sum(row[key] for row in rows) for key in (*TOTALS, "macs")},
        "flops": {
            "inference": macs(nnz, applied),
            "dense": macs(dense, applied),
            "ratio": macs(nnz, applied) / macs(dense, applied),
            **training_flops(trained.state["initial"], dense, applied, history, steps, ranks),
        },
    }
    found["total"]["density"] = found["total"]["nnz"] / found["total"]["weights"]
    if other is not None:
        found["overlap"] = _overlap(other, trained)
    return found


def _row(one: LayerDensity, applied: dict[str, int]) -> dict[str, Any]:
    shape = list(one.spec.shape)
    known = {"name": one.spec.name, "shape": shape, "weights": one.spec.numel, "nnz": one.nnz, "density": one.density}
    return known | asdict(one.units) | {"macs": one.nnz * applied.get(one.spec.name, 0)}


def _overlap(before: Trained, after: Trained) -> dict[str, Any]:
    found = overlap(masks(before.model), masks(after.model))
    both, first, last = (sum(getattr(one, key) for one in found.values()) for key in ("both", "before", "after"))
    total = {"kept": both / max(first, 1), "jaccard": both / max(first + last - both, 1)}
    return {"total": total, "layers": {n: {"kept": one.kept, "jaccard": one.jaccard} for n, one in found.items()}}


def _table(found: dict[str, Any]) -> Table:
    table = Table("layer", "shape", box=None, pad_edge=False)
    for name in ("density", "weights", "empty neurons", "empty inputs", "left", "mult-adds"):
        table.add_column(name, justify="right")
    for row in (*found["layers"], found["total"] | {"name": "total", "shape": []}):
        table.add_row(
            row["name"],
            "x".join(map(str, row["shape"])),
            f"{row['density']:.4f}",
            f"{row['nnz']:,}",
            f"{row['empty_neurons']:,} of {row['neurons']:,}",
            f"{row['empty_inputs']:,} of {row['inputs']:,}",
            f"{row['remaining']:,}",
            f"{row['macs']:,}",
            style="bold" if row["name"] == "total" else "",
        )
    return table


def shrink(command: "cli.Shrink", words: str) -> None:
    """A smaller file, and what became smaller."""
    if command.out.suffix not in (".safetensors", ".pt"):
        raise ValueError(f"-o {command.out} must end in .safetensors or .pt")
    trained = read_network(command.network)
    small, report = shrink_with_report(trained.model, trained.example)
    if command.out.suffix == ".pt":
        _save_pt(small, command.out)
    else:
        save_sparse(small, command.out)
    console.print(str(report), highlight=False, soft_wrap=True)
    console.print(f"same function: {report.difference:.1e} apart at most, relative, in float64", highlight=False)
    _told(command.out)


def _save_pt(model: nn.Module, path: Path) -> None:
    """For ``torch.load(path, weights_only=True)``: the state, and the sizes that modules remember."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    torch.save({"model": state, "sizes": sizes(model)}, path)
    back = torch.load(path, weights_only=True)["model"]
    if state.keys() != back.keys() or not all(torch.equal(state[name], back[name]) for name in state):
        path.unlink()
        raise ValueError(f"what was read back from {path} differs from what was written")


def export(command: "cli.Export", words: str) -> None:
    """A file in the format that was asked for."""
    trained = read_network(command.network)
    model = shrink_with_report(trained.model, trained.example)[0] if command.shrink else trained.model
    if command.to == "onnx":
        save_onnx(model, command.out, trained.example)
    else:
        {"dense": save_dense, "csr": save_csr, "safetensors": save_sparse}[command.to](model, command.out)
    _told(command.out)


def _told(path: Path) -> None:
    console.print(f"{path}: {path.stat().st_size:,} bytes, read back and compared", highlight=False, soft_wrap=True)
