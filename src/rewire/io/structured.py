"""Weights with structure as tensors of torch that have kernels for it: BSR, and 2:4 semi-structured."""

import math
import warnings

import torch
from torch import Tensor, nn

from rewire._torch import from_semi_structured, parameters_of, semi_structured_arrays
from rewire.io.compare import refuse_values_outside
from rewire.model.kinds import weights_of
from rewire.model.layouts import Layout
from rewire.model.state_names import masks_of
from rewire.stores.convert import to_masked

# With 32 bits, torch's conversion of 1:2 matrices and back does not give the same matrix on the CPU; for 8 bits,
# weights would have to be quantized first.
SEMI_STRUCTURED = (torch.float16, torch.bfloat16)
OUTPUTS, INPUTS = 32, 64  # the kernels need multiples of these


def to_bsr(model: nn.Module, rows: int, columns: int | None = None) -> dict[str, Tensor]:
    """Each sparse weight as a ``torch.sparse_bsr`` matrix of blocks of ``rows`` outputs and ``columns`` inputs.

    A block is stored if one of its weights exists. A convolution is a matrix with the inputs of the first tap first,
    then those of the second, so that blocks of ``Blocks(rows, columns)`` stay whole; the matrices of groups, and of a
    stack such as experts, are one below the other. Each matrix is compared with the dense weight.
    """
    height, width = rows, rows if columns is None else columns
    for side in (height, width):
        if not isinstance(side, int) or side < 1:
            raise ValueError(f"a block has whole numbers of outputs and inputs, not {height!r} x {width!r}")
    matrices = {}
    for name, (weight, mask) in _matrices(model).items():
        if weight.shape[0] % height or weight.shape[1] % width:
            raise ValueError(
                f"{name} is a matrix of {weight.shape[0]} x {weight.shape[1]}, which blocks of {height} x {width} do "
                "not divide: train it with constraint=Blocks(...), which refuses such layers at the start"
            )
        grid = (weight.shape[0] // height, height, weight.shape[1] // width, width)
        stored = mask.view(grid).any(3).any(1)
        row_ptr = torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)])
        values = weight.view(grid).permute(0, 2, 1, 3)[stored]
        with torch.sparse.check_sparse_tensor_invariants(True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse BSR tensor support is in beta")
            matrix = torch.sparse_bsr_tensor(row_ptr, stored.nonzero()[:, 1], values, size=tuple(weight.shape))
        if not torch.equal(matrix.to_dense(), weight):
            raise RuntimeError(f"the BSR matrix of {name} differs from its weight: please report this")
        matrices[name] = matrix
    return matrices


def to_semi_structured_arrays(model: nn.Module, dtype: torch.dtype = torch.float16) -> dict[str, tuple[Tensor, Tensor]]:
    """Each sparse weight of a linear layer as torch's CUTLASS kernels store it: compressed values and metadata.

    At most two of every four inputs of an output exist: train with ``constraint=NM(2, 4)``. Works on the CPU. Expanding
    the arrays gives the weight again, bit for bit: each is compared.
    """
    if dtype not in SEMI_STRUCTURED:
        raise ValueError(f"semi-structured weights are float16 or bfloat16, not {dtype}: pass one of these as dtype=")
    arrays = {}
    for name, (weight, mask) in _matrices(model).items():
        _refuse_other_pattern(name, mask)
        dense = weight.to(dtype)
        values, metadata = semi_structured_arrays(dense)
        if not torch.equal(from_semi_structured(values, metadata), dense):
            raise RuntimeError(f"the semi-structured arrays of {name} differ from its weight: please report this")
        arrays[name] = (values, metadata)
    return arrays


def to_semi_structured(model: nn.Module, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """Each sparse weight of a linear layer as torch's semi-structured tensor, on the GPU, ready for ``F.linear``."""
    to_semi_structured_arrays(model, dtype)  # raises if a weight does not have the pattern
    if not torch.cuda.is_available():
        raise ValueError(
            "torch multiplies semi-structured tensors on CUDA devices only, and there is none here: "
            "rewire.io.to_semi_structured_arrays gives the compressed values and the metadata on the CPU"
        )
    convert = torch.sparse.to_sparse_semi_structured
    return {name: convert(weight.to("cuda", dtype)) for name, (weight, _) in _matrices(model).items()}


def _refuse_other_pattern(name: str, mask: Tensor) -> None:
    if mask.shape[0] % OUTPUTS or mask.shape[1] % INPUTS:
        raise ValueError(
            f"{name} has {mask.shape[0]} outputs and {mask.shape[1]} inputs; torch's semi-structured kernels need "
            f"multiples of {OUTPUTS} and {INPUTS}: leave the layer dense with exclude="
        )
    if int(mask.view(mask.shape[0], -1, 4).sum(-1).max()) > 2:
        raise ValueError(f"{name} has more than 2 weights in a group of 4 inputs: train it with constraint=NM(2, 4)")


def _matrices(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Each sparse weight and its mask as matrices: outputs, and the inputs tap by tap."""
    matrices: dict[str, tuple[Tensor, Tensor]] = {}
    for path, module in to_masked(model).named_modules():
        for name, mask in masks_of(module).items():
            layout, weight = weights_of(module)[name], parameters_of(module)[name]
            assert weight is not None
            full_name = f"{path}.{name}" if path else name
            refuse_values_outside(full_name, weight.detach(), mask)
            matrices[full_name] = (_matrix(weight.detach().cpu(), layout), _matrix(mask.cpu(), layout))
    if not matrices:
        raise ValueError("the model has no sparse weight: sparsify it, and export it before remove()")
    return matrices


def _matrix(weight: Tensor, layout: Layout) -> Tensor:
    rows, columns, *taps = layout.matrix
    cube = weight.reshape(layout.groups, rows // layout.groups, columns, math.prod(taps))
    by_outputs = cube.transpose(1, 2) if layout.transposed else cube
    return by_outputs.transpose(2, 3).reshape(layout.groups * by_outputs.shape[1], -1).contiguous()
