"""What ``print(rewirer)`` shows."""

from collections.abc import Mapping

from rewire.core.method import Method
from rewire.stores.protocol import Store


def table(store: Store, method: Method, step: int, left_out: Mapping[str, str], other: int) -> str:
    """A row per layer with shape, density and nnz; the total; and what was left out, with the reason.

    ``other``: how many parameters the model has besides the sparse layers.
    """
    layers = store.layers
    total = sum(layer.shape.numel() for layer in layers)
    nnz = sum(layer.nnz for layer in layers)
    rows = [("layer", "shape", "density", "nnz")]
    rows += [
        (layer.name, "x".join(map(str, layer.shape)), f"{layer.density:.4f}", f"{layer.nnz:,}") for layer in layers
    ]
    rows += [("total", f"{total:,}", f"{nnz / total:.4f}", f"{nnz:,}")]
    rows += [("all parameters", f"{total + other:,}", f"{(nnz + other) / (total + other):.4f}", f"{nnz + other:,}")]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    ]
    rule = "-" * len(lines[0])
    notes = [f"not sparse: {name} ({reason})" for name, reason in left_out.items()]
    notes += [f"masked: {name} ({reason})" for name, reason in store.notes.items()]
    notes += [f"fixed: {layer.name} (frozen or replaced after sparsify)" for layer in layers if layer.frozen]
    head = f"step {step}, store {store.name}, start {method.start}, "
    head += f"drop {method.drop}, allocate {method.allocate}, grow {method.grow}"
    head += f", constraint {method.constraint}" if method.constraint is not None else ""
    dense = (
        f"density {nnz / total:.2f} of the sparse layers, {(nnz + other) / (total + other):.2f} of all parameters: "
        f"{other / (total + other):.0%} of them stay dense"
    )
    return "\n".join([head, lines[0], rule, *lines[1:-2], rule, *lines[-2:], dense, *notes])
