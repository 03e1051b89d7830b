"""What all packed layers have in common: values and positions instead of a dense weight.

A module is packed in place by changing its class, as ``torch.nn.utils.parametrize`` does: names, hooks and references
to the module stay. The parameter called ``weight`` stays the same object too, so the optimizer keeps it; its data
becomes a vector with one value per non-zero, and the buffer ``weight_positions`` has their flat positions. The
attribute ``weight_values`` is that parameter; the attribute ``weight`` reads as the dense weight (dense_weight.py).
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire._torch import parameters_of
from rewire.core.dense_ops import take, where_true
from rewire.kernels.batch import ops
from rewire.kernels.batch.norm import Moments
from rewire.kernels.eligibility import runs_native
from rewire.kernels.geometry import Geometry, Pair, to_hwcn
from rewire.model.loaded_topology import refuse_impossible
from rewire.model.state_names import mask_name, positions_name
from rewire.nn.backward_record import BackwardRecord
from rewire.nn.coverage import packable_weight
from rewire.nn.dense_weight import dense_weight
from rewire.nn.intruders import PARAMETRIZATION, PRUNE, put_on_after_sparsify

NO_RELU = -1.0  # as a ``relu_limit``: no ReLU is applied. The limit of nn.ReLU is infinity, that of nn.ReLU6 is 6.


def autocast_dtype(values: Tensor) -> torch.dtype | None:
    """The type that a layer with these weights returns under autocast; ``None`` where autocast does not apply."""
    if values.dtype != torch.float32 or not torch.is_autocast_enabled(values.device.type):
        return None
    return torch.get_autocast_dtype(values.device.type)


class Packed(nn.Module):
    """Base of the packed layers: values in ``weight_values``, their flat positions in ``weight_positions``."""

    torch_class: ClassVar[type[nn.Module]]  # what the layer was before it was packed
    runs_users_forward: ClassVar[bool] = False  # of a subclass that has a forward of its own
    inputs_first: ClassVar[bool] = False  # the weight has the shape (inputs, outputs)
    weight_name: ClassVar[str] = "weight"  # of the parameter that is packed
    weight_positions: Tensor
    dense_shape: torch.Size
    geometry: Geometry
    extra_padding: Pair  # rows below and columns to the right that are padded before the kernel runs
    layer_name: str = "a packed layer"  # in the model, for messages
    dense_read_warned: bool = False
    backward_record: BackwardRecord | None  # set at steps whose gradients a rewiring will rank
    relu_limit: float = NO_RELU  # upper bound of a ReLU that ``rewire.pack`` fused into the layer; negative: none

    @property
    def weight_values(self) -> nn.Parameter:
        """The packed parameter: one value for each non-zero."""
        return parameters_of(self)[self.weight_name]  # type: ignore[return-value]

    @property
    def weight(self) -> Tensor:
        """The dense weight, read-only, as code outside of this layer expects it."""
        return dense_weight(self)

    @property
    def kernel_positions(self) -> Tensor:
        """The positions in a weight whose outputs come first, as the kernel of ``apply_weight`` takes them."""
        return self.weight_positions

    @property
    def kernel_geometry(self) -> Geometry:
        """The geometry with outputs first."""
        return self.geometry

    def to_images(self, x: Tensor) -> Tensor:
        """The input of the layer as the (N, C, H, W) tensor that the kernel reads."""
        raise NotImplementedError

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """The output of the kernel in the shape that the layer returns for the input ``x``."""
        raise NotImplementedError

    def apply_weight(
        self,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        relu_limit: float = NO_RELU,
        moments: Moments | None = None,
    ) -> Tensor:
        """The output of the layer for the given values and bias; and keep what a rewiring needs of this step.

        ``relu_limit``: upper bound of a ReLU that is applied as well; negative: none. ``moments``: two vectors to fill
        with mean and variance of every output channel, for a batch norm that follows.
        """
        images, autocast = self.to_images(x), autocast_dtype(values)
        if autocast is not None:  # the kernels compute in the precision of the weights
            images = images.to(values.dtype)
        if self.extra_padding != (0, 0):
            images = F.pad(images, (0, self.extra_padding[1], 0, self.extra_padding[0]))
        if self.backward_record is not None and runs_native(images, values):
            # What the kernel saves for the backward pass is recorded, not `x`, which may be changed in place meanwhile.
            images = to_hwcn(images).permute(3, 2, 0, 1)
        y = ops.sparse_conv2d(images, values, self.kernel_positions, bias, self.kernel_geometry, relu_limit, moments)
        if self.backward_record is not None:
            # `y`, not the view of it that is returned: a hook on a view is lost when the view is changed in place
            self.backward_record.record(images, y, self.inputs_first)
        return self.from_images(y if autocast is None else y.to(autocast), x)

    def forward_fused(self, x: Tensor, relu_limit: float, moments: Moments | None = None) -> Tensor:
        """The output of the layer and of the ReLU that follows; see ``apply_weight``."""
        return self.apply_weight(x, self.weight_values, self.bias, relu_limit, moments)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """What the torch layer with zeros at the inactive positions computes."""
        return self.forward_fused(input, self.relu_limit)

    def record_dense_gradient(self, grad: Tensor) -> None:
        """Keep the gradient of the dense weight that other code read, if the next rewiring ranks gradients."""
        if self.backward_record is not None:
            self.backward_record.record_dense(grad)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Refuse what ``torch.nn.utils.prune`` makes of the weight."""
        if name == f"{self.weight_name}_orig":
            raise RuntimeError(self._put_on(PRUNE))
        super().register_parameter(name, param)

    def __delattr__(self, name: str) -> None:
        """Refuse parametrizations, which begin by taking the weight away."""
        if name == self.weight_name:
            raise RuntimeError(self._put_on(PARAMETRIZATION))
        super().__delattr__(name)

    def _put_on(self, intruder: str) -> str:
        beginning = put_on_after_sparsify(intruder, self.weight_name, self.layer_name)
        return f"{beginning}, which keeps only its non-zero values: put it on before sparsify"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        positions = self.weight_positions.long()  # checkpoints hold 64-bit positions
        destination[prefix + positions_name(self.weight_name)] = positions

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take on the topology of the checkpoint, packed or masked, whatever its number of weights."""
        metadata, *_, error_messages = args
        if metadata.get("assign_to_params_buffers"):
            raise RuntimeError(
                f"load_state_dict(assign=True) would replace the values of {self.layer_name}, which is packed: load "
                "with assign=False"
            )
        weight = prefix + self.weight_name
        own = {weight: self.weight_values.detach(), positions_name(weight): self.weight_positions}
        refuse_impossible(state_dict, weight, self.dense_shape, own, error_messages)
        values, mask = state_dict.get(weight), state_dict.pop(mask_name(weight), None)
        if mask is not None and values is not None:
            positions = where_true(mask)
            state_dict[positions_name(weight)] = positions
            state_dict[weight] = values = take(values, positions)
        loaded = state_dict.get(positions_name(weight))
        if values is not None and loaded is None and values.shape == self.dense_shape:  # of a dense model
            state_dict[weight] = values = take(values, self.weight_positions.long())
        if values is not None and loaded is not None and not self._has_positions(loaded):
            # New memory even for as many values: an older state_dict may still hold the old values.
            resize(self.weight_values, torch.empty(len(values), dtype=self.weight_values.dtype))
        if loaded is not None:  # the old positions are kept: by them the store rearranges the optimizer's state
            device = self.weight_positions.device
            self.weight_positions = torch.empty_like(loaded, dtype=position_dtype(self.geometry), device=device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _has_positions(self, positions: Tensor) -> bool:
        return torch.equal(self.weight_positions.long(), positions.long().to(self.weight_positions.device))


def weight_parameter(layer: nn.Module) -> nn.Parameter:
    """The parameter that is packed or can be, dense or packed: ``weight``, or the input projection of an attention."""
    weight = parameters_of(layer)[packable_weight(layer)]
    assert weight is not None
    return weight


def position_dtype(geometry: Geometry) -> torch.dtype:
    """32-bit integers unless the dense weight has 2^31 elements or more."""
    return torch.int32 if geometry.numel < 2**31 else torch.int64


def resize(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter data of another shape; it stays the object that the optimizer holds.

    While an old graph is alive (a loss that the user still holds), autograd would go on accumulating into the old
    shape. It forgets that shape only when the dtype changes, so the parameter has another dtype for a moment.
    """
    parameter.grad = None
    other = torch.float64 if data.dtype == torch.float32 else torch.float32
    parameter.data = torch.empty(0, dtype=other)
    parameter.data = data
