"""The table of native entry points: one row for each function that is registered in native/*.cpp.

A row lists the types of the arguments, in order, and of the result. Structures are passed as they are and checked by
type; arrays are passed as addresses (``tensor.data_ptr()``), ``None`` for a null pointer. ``library.py`` compares the
table with the signatures that a library reports when it loads one.
"""

import ctypes
from typing import Any, NamedTuple

from rewire.kernels.structures import (
    ChainStage,
    ConvCsr,
    CsrArrays,
    ForwardCsr,
    LayerShape,
    LinearCsr,
    PoolShape,
    StageGradients,
    Step,
)

_INT, _LONG, _FLOAT, _TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_char_p
_ARRAY = ctypes.c_void_p
_LAYER, _FORWARD, _CONV = (ctypes.POINTER(structure) for structure in (LayerShape, ForwardCsr, ConvCsr))
_POOL, _CSR, _STEPS = (ctypes.POINTER(structure) for structure in (PoolShape, CsrArrays, Step))
_LINEAR, _CHAIN, _CHAIN_GRADIENTS = (ctypes.POINTER(structure) for structure in (LinearCsr, ChainStage, StageGradients))

_POSITIONS = (_ARRAY, _INT)  # flat positions, and whether they are 64-bit
_THREADS = (_INT,)
_RELU = (_INT, _FLOAT)  # whether there is one, and its upper limit
_OUTPUT = (*[_ARRAY] * 6, _LONG, *_RELU, *_THREADS)  # input, values, bias, output, mean, variance; batch
_GRADIENTS = (*[_ARRAY] * 6, _LONG, *_THREADS)  # input, gradient, values, addend, gradients of input, values; batch
_SIZES = (_LONG, _INT, _LONG)  # pixels, channels, batch
_POOLED = (_INT, _INT, _INT, _LONG)  # height and width after pooling, channels, batch
_IMAGE = (_ARRAY, *[_INT] * 4, _LONG)  # pixels, height, width, channels of a pixel, channels to read; batch
_TILES = (_INT, _INT, _INT)  # tiles in a row, first tile, number of tiles
_NORM = (*[_ARRAY] * 2, *_RELU)  # scale and shift of batch norm, and the ReLU behind it

_TOKENS = (_ARRAY, _LONG, _INT)  # token-major activation, elements from one token to the next, whether it is bfloat16
_ACTIVATION = (_INT, _FLOAT)  # which function, and the upper limit of a ReLU


class EntryPoint(NamedTuple):
    """The types of one native function."""

    arguments: tuple[Any, ...]
    result: Any = None

    @property
    def signature(self) -> str:
        """One letter for the result and for each argument, as native/entry_point.hpp writes it.

        >>> EntryPoint((ctypes.c_void_p, ctypes.c_int32, ctypes.c_float)).signature
        'vpif'
        """
        letters = {None: "v", _INT: "i", _LONG: "q", _FLOAT: "f"}
        return "".join(letters.get(ctype, "p") for ctype in (self.result, *self.arguments))


ENTRY_POINTS: dict[str, EntryPoint] = {
    # interface.cpp
    "rewire_cpu_supports": EntryPoint((_TEXT,), _INT),
    "rewire_source_hash": EntryPoint((), _TEXT),
    "rewire_interface": EntryPoint((), _TEXT),
    # csr_build.cpp
    "rewire_is_sorted": EntryPoint((*_POSITIONS, _LONG), _INT),
    "rewire_build_csr": EntryPoint((_LAYER, *_POSITIONS, _LONG, _CSR)),
    # dispatch.cpp (conv_direct.cpp, conv_im2col.cpp)
    "rewire_conv_forward": EntryPoint((_LAYER, _FORWARD, _CONV, *_POSITIONS, *_OUTPUT)),
    "rewire_conv_backward": EntryPoint((_CONV, *_GRADIENTS)),
    # conv_dense.cpp
    "rewire_conv_dense_forward": EntryPoint((_LAYER, _CONV, _ARRAY, *_POSITIONS, *_OUTPUT)),
    "rewire_conv_dense_backward": EntryPoint((_LAYER, _CONV, _CONV, *[_ARRAY] * 3, *_POSITIONS, *_GRADIENTS)),
    # winograd.cpp
    "rewire_winograd_input": EntryPoint((*_IMAGE, _INT, _INT, *_TILES, _ARRAY, *_THREADS)),
    "rewire_winograd_grad": EntryPoint((*_IMAGE, *_TILES, _ARRAY, *_THREADS)),
    # linear_tokens.cpp
    "rewire_linear_tokens_forward": EntryPoint(
        (_LINEAR, *_TOKENS, *[_ARRAY] * 4, _INT, _LONG, *_ACTIVATION, *_THREADS)
    ),
    "rewire_linear_tokens_backward": EntryPoint(
        (_LINEAR, *_TOKENS, _ARRAY, _LONG, _ARRAY, _INT, *[_ARRAY] * 4, _LONG, *_ACTIVATION, *_THREADS)
    ),
    # batch_norm.cpp
    "rewire_channel_moments": EntryPoint((_ARRAY, *_SIZES, *[_ARRAY] * 2, *_THREADS)),
    "rewire_batch_norm_line": EntryPoint((*[_ARRAY] * 4, _FLOAT, _INT, *[_ARRAY] * 2)),
    "rewire_batch_norm": EntryPoint((_ARRAY, *_SIZES, *_NORM, *[_ARRAY] * 2, *_THREADS)),
    "rewire_batch_norm_grad_sums": EntryPoint((*[_ARRAY] * 3, *_SIZES, *_NORM, *[_ARRAY] * 2, *_THREADS)),
    "rewire_batch_norm_factors": EntryPoint((*[_ARRAY] * 3, _FLOAT, *[_ARRAY] * 2, _LONG, _INT, *[_ARRAY] * 3)),
    "rewire_batch_norm_grad_input": EntryPoint((*[_ARRAY] * 2, *_SIZES, *_NORM, *[_ARRAY] * 4, *_THREADS)),
    # batch_norm_pool.cpp
    "rewire_batch_norm_pool": EntryPoint((_ARRAY, *_POOLED, *_NORM, _ARRAY, *_THREADS)),
    "rewire_batch_norm_pool_grad_sums": EntryPoint((*[_ARRAY] * 3, *_POOLED, *_NORM, *[_ARRAY] * 2, *_THREADS)),
    "rewire_batch_norm_pool_grad_input": EntryPoint((*[_ARRAY] * 2, *_POOLED, *_NORM, *[_ARRAY] * 4, *_THREADS)),
    # relu.cpp
    "rewire_add_relu": EntryPoint((*[_ARRAY] * 2, _LONG, *_RELU, _ARRAY, *_THREADS)),
    "rewire_relu_backward": EntryPoint((*[_ARRAY] * 2, _LONG, _FLOAT, _ARRAY, *_THREADS)),
    # chain.cpp
    "rewire_chain_forward": EntryPoint((_CHAIN, _INT, _ARRAY, _LONG, *_THREADS)),
    "rewire_chain_backward": EntryPoint((_CHAIN, _CHAIN_GRADIENTS, _INT, _ARRAY, _LONG, *_THREADS)),
    # pooling.cpp
    "rewire_max_pool": EntryPoint((_POOL, *[_ARRAY] * 2, *_THREADS)),
    "rewire_max_pool_backward": EntryPoint((_POOL, *[_ARRAY] * 3, *_THREADS)),
    "rewire_avg_pool": EntryPoint((_POOL, *[_ARRAY] * 3, *_THREADS)),
    "rewire_avg_pool_backward": EntryPoint((_POOL, *[_ARRAY] * 3, *_THREADS)),
    # sample_program.cpp
    "rewire_sample_build_csr": EntryPoint((_LAYER, *_POSITIONS, _LONG, _ARRAY, _LONG, *[_ARRAY] * 2)),
    "rewire_sample_run": EntryPoint((_STEPS, _INT, _LONG, *[_ARRAY, _LONG] * 3, _INT, *_THREADS)),
}
