"""Which layers of a model are packed for inference: by density, or by measuring both forms."""

import copy
import time
from collections.abc import Callable, Sequence

from torch import Tensor, fx, nn

from rewire.inference.graph import PackedGraph
from rewire.inference.layers import pack_nonzeros, use_hwcn_modules
from rewire.inference.trace import PackedTracer
from rewire.kernels.geometry import to_hwcn
from rewire.kernels.tuning import MAX_SAMPLES
from rewire.nn.packed import weight_parameter

REPEATS = 5


def sparse_layers(layers: Sequence[nn.Module], densest: float) -> list[nn.Module]:
    """The layers whose share of non-zero weights is at most ``densest``."""
    return [
        layer
        for layer in layers
        if int(weight_parameter(layer).count_nonzero()) <= densest * weight_parameter(layer).numel()
    ]


def faster_packed_layers(
    model: nn.Module, layers: Sequence[nn.Module], example: Tensor, densest: float
) -> list[nn.Module]:
    """The layers that run faster packed than dense, each timed on the input that it gets from ``example``.

    Attention and the layers in it are chosen by density: it reads their weights instead of calling them.
    """
    if isinstance(model, fx.GraphModule):
        model.recompile()
    inputs: dict[nn.Module, Tensor] = {}

    def keep_input(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs[layer] = args[0].detach()

    in_attention = {
        module for part in model.modules() if type(part) is nn.MultiheadAttention for module in part.modules()
    }
    hooks = [layer.register_forward_pre_hook(keep_input) for layer in layers if layer not in in_attention]
    model(example)
    for hook in hooks:
        hook.remove()
    by_density = sparse_layers([layer for layer in layers if layer in in_attention], densest)
    timed = [layer for layer in layers if layer in inputs and is_faster_packed(layer, inputs[layer])]
    slower = set(layers) - {*by_density, *timed}
    dense_weights = {id(weight_parameter(layer)) for layer in slower}  # a shared weight is packed for all or none
    return [layer for layer in layers if id(weight_parameter(layer)) not in dense_weights]


def is_faster_packed(layer: nn.Module, x: Tensor) -> bool:
    """Whether a layer runs faster packed.

    Its neighbours are assumed to be packed, so a dense convolution pays for converting its input from HWCN layout and
    its output back. Small batches usually run sample by sample: the first sample is timed for all.
    """
    if len(x) <= MAX_SAMPLES:
        x = x[:1]
    packed, dense = _model_of_one_layer(layer), _model_of_one_layer(layer)
    pack_nonzeros([packed.get_submodule("0")])
    use_hwcn_modules(dense)
    is_image_batch = x.dim() == 4 and len(x) > 1
    if is_image_batch:
        x = to_hwcn(x).permute(3, 2, 0, 1)
    elif x.dim() == 2:
        x = x.t().contiguous().t()

    def run_dense() -> Tensor:
        y: Tensor = dense(x)
        return to_hwcn(y) if is_image_batch else y

    times: dict[str, list[float]] = {"dense": [], "packed": []}
    for _ in range(REPEATS):  # alternating, so that a slow phase of the machine affects both
        times["dense"].append(_seconds(run_dense))
        times["packed"].append(_seconds(lambda: packed(x)))
    return min(times["packed"]) < min(times["dense"])


def _seconds(run: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _model_of_one_layer(layer: nn.Module) -> PackedGraph:
    """A copy of a layer as a packed graph, which runs a single sample in one native call like the whole model."""
    model = nn.Sequential(copy.deepcopy(layer))
    return PackedGraph(model, PackedTracer().trace(model))
