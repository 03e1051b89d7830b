"""The names under which a layer's topology is found in its module's buffers and in a ``state_dict``."""

MASK_SUFFIX = "_mask"  # follows the name of a weight
POSITIONS_SUFFIX = "_positions"
MASK = "weight" + MASK_SUFFIX
POSITIONS = "weight" + POSITIONS_SUFFIX
