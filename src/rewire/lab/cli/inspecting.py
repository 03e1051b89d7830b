"""``rewire inspect``: the layers of a network."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from rewire.analysis.density import LayerDensity, densities, masks
from rewire.analysis.flops import macs, positions
from rewire.analysis.overlap import Overlap, overlap, unpacked_bits
from rewire.lab.cli import arguments as cli
from rewire.lab.cli.terminal import console
from rewire.lab.report.network_figures import draw
from rewire.lab.training.network import Trained, read_network
from rewire.lab.training.outcome import training_flops
from rewire.lab.training.recipe import method_of
from rewire.rewirer.state import history_from

WEIGHTS = ("density", "weights", "explored", "kept")
STRUCTURE = ("empty neurons", "empty inputs", "left", "mult-adds")
TOTALS = ("weights", "nnz", "neurons", "empty_neurons", "inputs", "empty_inputs", "remaining")


def inspect(command: "cli.Inspect", words: str) -> None:
    """The numbers of a network, as a table or JSON."""
    trained = read_network(command.network)
    numbers = figures(trained, read_network(command.against) if command.against else None)
    drawn = draw(trained, command.pictures) if command.pictures else []
    if command.json:
        print(json.dumps(numbers, indent=1))
        return
    for table in _tables(numbers):  # wider than the terminal rather than with numbers cut off
        Console(width=max(_width(table), console.width)).print(table)
    cost, total, run = numbers["flops"], numbers["total"], trained.run
    console.print(f"\n[bold]{run.label}[/], {numbers['steps']:,} steps", highlight=False)
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
    """Everything that ``inspect`` shows, as plain data."""
    layers = densities(trained.model)
    nnz = {layer.spec.name: layer.nnz for layer in layers}
    dense = {layer.spec.name: layer.spec.numel for layer in layers}
    applied = positions(trained.model, trained.example[:1])
    history = history_from(trained.state["rewirer"]["history"]) if trained.state["rewirer"] else []
    method = method_of(trained.run, trained.steps) if not trained.run.is_dense else None
    steps = len(trained.state["metrics"]) * trained.steps
    explored = _explored(trained, layers)
    rows = [_row(layer, applied) | {"explored": explored.get(layer.spec.name)} for layer in layers]
    numbers: dict[str, Any] = {
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
    numbers["total"] |= {"density": numbers["total"]["nnz"] / numbers["total"]["weights"]}
    numbers["total"] |= {"explored": sum(explored.values()) or None}
    if other is not None:
        _add_overlap(numbers, overlap(masks(other.model), masks(trained.model)))
    return numbers


def _row(one: LayerDensity, applied: dict[str, int]) -> dict[str, Any]:
    shape = list(one.spec.shape)
    known = {"name": one.spec.name, "shape": shape, "weights": one.spec.numel, "nnz": one.nnz, "density": one.density}
    return known | asdict(one.units) | {"macs": one.nnz * applied.get(one.spec.name, 0)}


def _explored(trained: Trained, layers: list[LayerDensity]) -> dict[str, int]:
    """How many positions of each layer were ever active; nothing if the checkpoint does not say."""
    if trained.run.is_dense:
        return {layer.spec.name: layer.nnz for layer in layers}
    bits = trained.state.get("explored") or {}
    return {
        layer.spec.name: int(unpacked_bits(bits[layer.spec.name], layer.spec.shape).sum())
        for layer in layers
        if layer.spec.name in bits
    }


def _add_overlap(found: dict[str, Any], shared: dict[str, Overlap]) -> None:
    """How much of another topology is still there, in each layer and in total."""
    whole = Overlap(*(sum(getattr(counts, key) for counts in shared.values()) for key in ("before", "after", "both")))
    for row, counts in zip((*found["layers"], found["total"]), (*shared.values(), whole), strict=True):
        row |= {"kept": counts.kept, "jaccard": counts.jaccard}


def _tables(found: dict[str, Any]) -> list[Table]:
    """One table, or two where the terminal is too narrow: the weights, and what they leave of neurons and of work."""
    whole = _table(found)
    if _width(whole) <= console.width:
        return [whole]
    return [_table(found, WEIGHTS), _table(found, STRUCTURE)]


def _width(table: Table) -> int:
    return Measurement.get(console, console.options.update_width(1000), table).maximum


def _table(found: dict[str, Any], chosen: Sequence[str] = (*WEIGHTS, *STRUCTURE)) -> Table:
    """A row per layer. Numbers that no layer has get no column."""
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
    shown = [name for name in chosen if name in columns]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for row in (*found["layers"], total):
        cells = (columns[name](row) for name in shown)
        table.add_row(row["name"], "x".join(map(str, row["shape"])), *cells, style="bold" if row is total else "")
    return table
