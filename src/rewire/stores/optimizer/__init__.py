"""The optimizers of a sparse model: which of their state belongs to single weights, how it moves, how it is born."""

from rewire.stores.optimizer.optimizers import Optimizers as Optimizers
from rewire.stores.optimizer.optimizers import unwrap_optimizer as unwrap_optimizer
from rewire.stores.optimizer.rules import register as register
from rewire.stores.optimizer.state import has_only_elementwise_state as has_only_elementwise_state
from rewire.stores.optimizer.state import map_state as map_state
from rewire.stores.optimizer.state import state_tensors as state_tensors
