"""The networks of the paper's evaluation and two small ones, in plain ``torch.nn``.

Every network is built for one image size, given as (channels, height, width), and comes in two forms:

- *small images* (below 64x64, such as CIFAR): the first convolution keeps the resolution, with no pooling after it;
- *large images* (64x64 and above, such as Tiny-ImageNet): MobileNetV2 and ResNet-18 halve the image in the first
  convolution, so that every later map has the size it has for 32x32; VGG16 loses its last block, as in the paper.

Three rules hold for all of them. Convolutions have no bias where batch norm follows. There is no dropout: the paper
names none, and it would draw from the global generator during training, which a resumed run could not repeat.
Activations are not in place, so that hooks and analyses still see what a layer returned.

Weights are Kaiming uniform as in the paper, biases zero. `forward` has no control flow that depends on data: every
network can be traced with ``torch.fx.symbolic_trace``.
"""

from rewire.lab.models.build import build as build
from rewire.lab.models.build import weights as weights
from rewire.lab.models.registry import MODELS as MODELS
from rewire.lab.models.registry import register as register
