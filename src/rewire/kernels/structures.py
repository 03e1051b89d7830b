"""The structures that cross the C interface, field for field as the headers in native/ declare them.

``library.py`` compares sizes and offsets with those of a library when it loads one. Fill them by field name.
"""

import ctypes

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class LayerShape(ctypes.Structure):
    """The dense shape of a layer (native/csr_build.hpp); ``in_channels`` are those of one group."""

    _fields_ = (("out_channels", _INT), ("in_channels", _INT), ("taps", _INT), ("groups", _INT))


class ForwardCsr(ctypes.Structure):
    """CSR row pointers of the forward pass (native/csr_build.hpp)."""

    _fields_ = (("col_blocks", _INT), ("row_ptr", _POINTER), ("tap_offset", _POINTER))


class CsrArrays(ctypes.Structure):
    """Arrays that ``rewire_build_csr`` fills (native/csr_build.hpp)."""

    _fields_ = (
        ("forward_blocks", _INT),
        ("backward_blocks", _INT),
        ("backward_tap_rank", _POINTER),
        ("backward_tap_offset", _POINTER),
        ("forward_row_ptr", _POINTER),
        ("backward_row_ptr", _POINTER),
        ("backward_col_idx", _POINTER),
        ("backward_perm", _POINTER),
    )


class Axis(ctypes.Structure):
    """One axis of the output of a pass (native/conv_csr.hpp)."""

    _fields_ = (
        ("size", _INT),
        ("base", _POINTER),
        ("phase", _POINTER),
        ("tap_begin", _POINTER),
        ("tap_end", _POINTER),
    )


class ConvCsr(ctypes.Structure):
    """A sparse convolution in CSR form, in one direction (native/conv_csr.hpp)."""

    _fields_ = (
        ("out_channels", _INT),
        ("taps", _INT),
        ("col_blocks", _INT),
        ("in_channels", _INT),
        ("in_height", _INT),
        ("in_width", _INT),
        ("nnz", _LONG),
        ("y", Axis),
        ("x", Axis),
        ("x_phases", _INT),
        ("phase_first_tap", _POINTER),
        ("phase_width", _POINTER),
        ("tap_dy", _POINTER),
        ("tap_dx", _POINTER),
        ("row_stride", _LONG),
        ("block_stride", _LONG),
        ("row_ptr", _POINTER),
        ("col_idx", _POINTER),
        ("row_base", _POINTER),
        ("perm", _POINTER),
        ("prefetch_dy", _INT),
        ("prefetch_dx", _INT),
        ("prefetch_rows", _INT),
    )


class ConvPasses(ctypes.Structure):
    """Both passes of a sparse convolution (native/chain.hpp)."""

    _fields_ = (
        ("shape", LayerShape),
        ("forward_csr", ForwardCsr),
        ("forward", ConvCsr),
        ("backward", ConvCsr),
        ("backward_tap_rank", _POINTER),
        ("backward_tap_offset", _POINTER),
        ("dense_forward", _INT),
        ("dense_backward", _INT),
    )


class ChainStage(ctypes.Structure):
    """One stage of a chain (native/chain.hpp)."""

    _fields_ = (
        ("conv", ConvPasses),
        ("source", _INT),
        ("addend", _INT),
        ("pool", _INT),
        ("is_int64", _INT),
        ("eps", _FLOAT),
        ("relu_limit", _FLOAT),
        ("positions", _POINTER),
        ("values", _POINTER),
        ("conv_bias", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("mean", _POINTER),
        ("variance", _POINTER),
        ("before_norm", _POINTER),
        ("output", _POINTER),
    )


class StageGradients(ctypes.Structure):
    """Where the backward pass of a stage reads and writes gradients (native/chain.hpp)."""

    _fields_ = (
        ("output", _POINTER),
        ("before_relu", _POINTER),
        ("addend_part", _POINTER),
        ("addend", _POINTER),
        ("before_norm", _POINTER),
        ("source_part", _POINTER),
        ("source", _POINTER),
        ("values", _POINTER),
        ("weight", _POINTER),
        ("bias", _POINTER),
    )


class CsrRows(ctypes.Structure):
    """One direction of a sparse linear layer in CSR form (native/linear_csr.hpp)."""

    _fields_ = (
        ("rows", _INT),
        ("is_int64", _INT),
        ("row_ptr", _POINTER),
        ("col_idx", _POINTER),
        ("row_stride", _LONG),
        ("perm", _POINTER),
    )


class LinearCsr(ctypes.Structure):
    """Both directions of a sparse linear layer (native/linear_csr.hpp)."""

    _fields_ = (("outputs", CsrRows), ("inputs", CsrRows), ("nnz", _LONG))


class PoolShape(ctypes.Structure):
    """The sizes of a pooling layer (native/pooling.hpp)."""

    _fields_ = (
        ("height", _INT),
        ("width", _INT),
        ("out_height", _INT),
        ("out_width", _INT),
        ("kernel_y", _INT),
        ("kernel_x", _INT),
        ("stride_y", _INT),
        ("stride_x", _INT),
        ("pad_y", _INT),
        ("pad_x", _INT),
        ("pixel_size", _LONG),
    )


class Activation(ctypes.Structure):
    """A planar activation of one sample (native/sample_program.hpp)."""

    _fields_ = (
        ("offset", _LONG),
        ("channel_stride", _LONG),
        ("channels", _INT),
        ("height", _INT),
        ("width", _INT),
        ("row_stride", _INT),
        ("origin", _INT),
    )


class StepWindow(ctypes.Structure):
    """The window of a pooling step, or the stride and padding of a space-to-depth step (native/sample_program.hpp)."""

    _fields_ = (
        ("height", _INT),
        ("width", _INT),
        ("stride_y", _INT),
        ("stride_x", _INT),
        ("pad_y", _INT),
        ("pad_x", _INT),
        ("count_padding", _INT),
        ("phases", _INT),
    )


class Step(ctypes.Structure):
    """One step of a one-sample program (native/sample_program.hpp)."""

    _fields_ = (
        ("kind", _INT),
        ("relu", _INT),
        ("limit", _FLOAT),
        ("outputs_per_group", _INT),
        ("source", Activation),
        ("addend", Activation),
        ("target", Activation),
        ("window", StepWindow),
        ("row_ptr", _POINTER),
        ("col_idx", _POINTER),
        ("values", _POINTER),
        ("bias", _POINTER),
        ("row_size", _LONG),
        ("columns", _LONG),
        ("group_stride", _LONG),
    )


STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    *(LayerShape, ForwardCsr, CsrArrays, Axis, ConvCsr, ConvPasses, ChainStage, StageGradients, CsrRows, LinearCsr),
    *(PoolShape, Activation, StepWindow, Step),
)
