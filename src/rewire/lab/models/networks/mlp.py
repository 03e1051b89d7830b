"""A multilayer perceptron."""

import math

from torch import nn

from rewire.lab.models.layers import Image, check_arguments, dense_head, initialise
from rewire.lab.models.registry import register


@register("mlp", label="MLP")
def mlp(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Flatten, then hidden layers of 300 and 100 units: the LeNet-300-100 of the pruning literature."""
    check_arguments("mlp", classes, image, width, smallest=1)
    return initialise(nn.Sequential(*dense_head(math.prod(image), (300, 100), classes, width)))
