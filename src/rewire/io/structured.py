"""Weights with structure as tensors of torch that have kernels for it: BSR, and 2:4 semi-structured."""

import torch
from torch import Tensor, nn

from rewire._torch import from_semi_structured, semi_structured_arrays
from rewire.model.state_names import masks_in
from rewire.stores.convert import to_masked

PATTERNS = {torch.float16: (2, 4), torch.bfloat16: (2, 4), torch.int8: (2, 4), torch.float32: (1, 2)}


def to_bsr(model: nn.Module, rows: int, columns: int | None = None) -> dict[str, Tensor]:
    """Each sparse weight as a ``torch.sparse_bsr`` matrix of blocks of ``rows`` outputs and ``columns`` inputs.

    A block is stored if one of its weights exists. A convolution is a matrix with the inputs of the first tap first,
    then those of the second, so that blocks of ``Blocks(rows, columns)`` stay whole. Each matrix is compared with the
    dense weight.
    """
    height, width = rows, columns or rows
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
        matrix = torch.sparse_bsr_tensor(row_ptr, stored.nonzero()[:, 1], values, size=tuple(weight.shape))
        if not torch.equal(matrix.to_dense(), weight):
            raise RuntimeError(f"the BSR matrix of {name} differs from its weight: please report this")
        matrices[name] = matrix
    return matrices


def to_semi_structured_arrays(model: nn.Module, dtype: torch.dtype = torch.float16) -> dict[str, tuple[Tensor, Tensor]]:
    """Each sparse weight of a linear layer as torch's CUTLASS kernels store it: compressed values and metadata.

    Two of every four inputs in ``float16``, ``bfloat16`` and ``int8``, one of every two in ``float32``: train with
    ``constraint=NM(2, 4)`` or ``NM(1, 2)``. Works on the CPU. Expanding the arrays gives the weight again, bit for bit:
    each is compared.
    """
    if dtype not in PATTERNS:
        raise ValueError(f"torch has semi-structured kernels for {', '.join(map(str, PATTERNS))}, not for {dtype}")
    arrays = {}
    for name, (weight, mask) in _matrices(model).items():
        _refuse_other_pattern(name, mask, dtype)
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


def _refuse_other_pattern(name: str, mask: Tensor, dtype: torch.dtype) -> None:
    n, m = PATTERNS[dtype]
    outputs, inputs = (16, 128) if dtype == torch.int8 else (32, 32) if dtype == torch.float32 else (32, 64)
    if mask.shape[0] % outputs or mask.shape[1] % inputs:
        raise ValueError(
            f"{name} has {mask.shape[0]} outputs and {mask.shape[1]} inputs; torch's semi-structured kernels for "
            f"{dtype} need multiples of {outputs} and {inputs}: leave the layer dense with exclude="
        )
    if int(mask.view(mask.shape[0], -1, m).sum(-1).max()) > n:
        raise ValueError(
            f"{name} has more than {n} weights in a group of {m} inputs, the pattern of {dtype}: train it with "
            f"constraint=NM({n}, {m})"
        )


def _matrices(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Each sparse weight and its mask as matrices: outputs, and the inputs tap by tap."""
    state = to_masked(model).state_dict()
    return {name: (_matrix(state[name].detach().cpu()), _matrix(mask.cpu())) for name, mask in masks_in(state).items()}


def _matrix(weight: Tensor) -> Tensor:
    return weight.flatten(2).transpose(1, 2).reshape(len(weight), -1) if weight.dim() > 2 else weight
