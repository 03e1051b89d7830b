"""``nn.MultiheadAttention`` that keeps only the non-zero weights of its input projections.

Its forward is torch's own. It reads the weights of its projections instead of calling layers; dense_weight.py runs the
sparse kernels for them.
"""

from typing import Any

from torch import Tensor, nn

from rewire._torch import buffers_of
from rewire.model.state_names import positions_name
from rewire.nn.dense_weight import dense_weight
from rewire.nn.packed_linear import TokenLinear


class PackedAttention(TokenLinear, nn.MultiheadAttention):
    """One sparse linear layer projects queries, keys and values. The output projection is a module of its own."""

    torch_class = nn.MultiheadAttention
    runs_users_forward = True
    weight_name = "in_proj_weight"
    forward: Any = nn.MultiheadAttention.forward

    @property
    def in_proj_weight(self) -> Tensor:  # type: ignore[override]
        """The dense weight, read-only, as torch's forward reads it."""
        return dense_weight(self)

    @property
    def weight_positions(self) -> Tensor:
        """The flat positions of the non-zero weights."""
        positions = buffers_of(self)[positions_name(self.weight_name)]
        assert positions is not None
        return positions

    @weight_positions.setter
    def weight_positions(self, positions: Tensor) -> None:
        buffers_of(self)[positions_name(self.weight_name)] = positions
