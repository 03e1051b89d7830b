"""``pack``: a trained sparse model made fast for inference.

The steps, each in its own file: trace the model (trace.py), fold batch norm (fuse.py), choose the layers to pack
(choose.py), pack them (layers.py), fuse ReLUs and residual sums (fuse.py). The result is a ``PackedGraph`` (graph.py).
"""

import torch
from torch import Tensor, nn

from rewire.inference.choose import faster_packed_layers, sparse_layers
from rewire.inference.fuse import fold_batch_norm, fuse_relu, fuse_sums
from rewire.inference.graph import PackedGraph
from rewire.inference.layers import name_packed_layers, pack_nonzeros, packable_layers, use_hwcn_modules
from rewire.inference.trace import trace
from rewire.stores.convert import to_dense

DENSEST = 0.3  # a layer with a larger share of its weights is faster dense


@torch.no_grad()
def pack(
    model: nn.Module, example: Tensor | None = None, *, measure: bool = False, densest: float = DENSEST
) -> nn.Module:
    """A copy of a sparse model for inference, equal to ``model.eval()`` within rounding. The model stays as it is.

    Takes a masked or packed model, or a plain one with zeros. Layers denser than ``densest`` stay dense; with
    ``measure=True`` every layer is timed packed and dense, on the input it gets when the model runs on ``example``,
    and the faster form is taken; the projections of ``nn.MultiheadAttention`` are always chosen by ``densest``. With an
    ``example``, what tracing recorded of the model is compared with the model itself.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    >>> _ = model[0].weight.data.mul_(torch.eye(8)[:4])
    >>> pack(model).get_submodule("0").weight_values.shape
    torch.Size([4])
    """
    if measure and example is None:
        raise ValueError("measure=True needs an example input to run the layers on: pack(model, example, measure=True)")
    packed = trace(to_dense(model).eval(), example)
    for parameter in packed.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.contiguous()
    if isinstance(packed, PackedGraph):
        fold_batch_norm(packed)
    layers = packable_layers(packed)
    chosen = (
        sparse_layers(layers, densest)
        if example is None or not measure
        else faster_packed_layers(packed, layers, example, densest)
    )
    pack_nonzeros(chosen)
    name_packed_layers(packed)
    use_hwcn_modules(packed)
    if isinstance(packed, PackedGraph):
        fuse_relu(packed)
        fuse_sums(packed)
        packed.recompile()
    return packed
