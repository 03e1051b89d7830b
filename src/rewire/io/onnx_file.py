"""ONNX files: the network as a graph with dense weights, checked with ONNX Runtime before the file gets its name."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rewire._extras import need
from rewire.io.compare import compare_outputs
from rewire.io.files import write_checked
from rewire.stores.convert import to_dense

TOLERANCE = 1e-4  # relative, between what two runtimes compute in float32


def save_onnx(
    model: nn.Module,
    path: str | Path,
    example: Tensor,
    tolerance: float = TOLERANCE,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the network for any batch size; ONNX Runtime must agree with torch on the example and on random inputs.

    The first dimension of input and output is called ``batch``. ``metadata`` is kept in the file
    (``rewire.io.read_metadata`` reads it).
    """
    need("onnx", "onnx", "onnxscript", "onnxruntime")
    import onnxruntime  # imported here: only this export needs it

    model = to_dense(model).cpu().eval()
    example = example.detach().cpu()
    batch = torch.export.Dim("batch")
    traced = example if len(example) > 1 else _samples(example, 2)  # the sizes 0 and 1 would be fixed
    with warnings.catch_warnings(), _only_errors("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter calls parts of torch that torch deprecates
        program = torch.export.export(model, (traced,), dynamic_shapes=({0: batch},), strict=False)
        exported = torch.onnx.export(program, (traced,), dynamo=True, verbose=False, optimize=True)
    assert exported is not None
    _name_batch(exported.model.graph)
    exported.model.metadata_props.update(metadata or {})

    def check(file: Path) -> None:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for x in (example, _samples(example, 3)):
            with torch.no_grad():
                expected = [leaf for leaf in tree_leaves(model(x)) if isinstance(leaf, Tensor)]
            outputs = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            compare_outputs(expected, list(map(torch.as_tensor, outputs)), tolerance, "ONNX Runtime")

    write_checked(path, lambda file: exported.save(str(file)), check)


def _samples(example: Tensor, count: int) -> Tensor:
    """Random samples of the example's shape. Integers are not made up: they may be indices, as of an embedding.

    Each is taken from the same place in some sample of the example, so that it has a meaning there.
    """
    shape, generator = (count, *example.shape[1:]), torch.Generator().manual_seed(0)
    if example.is_floating_point() or example.is_complex():
        return torch.randn(shape, generator=generator, dtype=example.dtype)
    if not len(example):
        return example.new_zeros(shape)
    return example.gather(0, torch.randint(len(example), shape, generator=generator))


def _name_batch(graph: Any) -> None:
    """Call the dynamic dimension ``batch``: the exporter makes up a name such as ``s77``."""
    symbol = graph.inputs[0].shape[0]
    produced = (value for node in graph for value in node.outputs)
    for value in (*graph.inputs, *produced):
        for i, size in enumerate(value.shape or ()):
            if size == symbol:
                value.shape[i] = "batch"


@contextmanager
def _only_errors(logger: str) -> Iterator[None]:
    """Silence a logger below errors: the exporter logs which packages are not installed, and it needs none of them."""
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)
