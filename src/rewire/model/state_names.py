"""The names of ``rewire.core.state_names``, which stores and files use."""

from rewire.core.state_names import MASK as MASK
from rewire.core.state_names import MASK_SUFFIX as MASK_SUFFIX
from rewire.core.state_names import POSITIONS as POSITIONS
