"""Plans (CSR arrays) that are kept for the next call with the same positions.

They live as long as the tensor of positions does and are made anew when that is written to.
"""

from typing import Any, Protocol, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rewire._torch import write_count
from rewire.kernels.csr import refuse_outside
from rewire.kernels.geometry import Geometry
from rewire.kernels.library import native


class _Plan(Protocol):
    def __init__(self, native: Any, geometry: Geometry, positions: Tensor, height: int, width: int) -> None: ...

    @property
    def nbytes(self) -> int: ...


Plan = TypeVar("Plan", bound=_Plan)
_PLANS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # positions: (write count, plans)


def cached_plan(kind: type[Plan], geometry: Geometry, positions: Tensor, height: int, width: int) -> Plan:
    """The plan of a layer for inputs of this size, made with the library in use if there is none yet."""
    writes, plans = _PLANS.get(positions, (-2, {}))
    if writes != write_count(positions):
        writes, plans = write_count(positions), {}
        _PLANS[positions] = (writes, plans)
    key = (kind, geometry, height, width)
    if key not in plans:
        refuse_outside(geometry, positions)
        plans[key] = kind(native(), geometry, positions, height, width)
    return plans[key]  # type: ignore[no-any-return]


def plan_bytes(positions: Tensor) -> int:
    """Memory of the plans that are kept for a tensor of positions."""
    _, plans = _PLANS.get(positions, (-2, {}))
    return sum(plan.nbytes for plan in plans.values())
