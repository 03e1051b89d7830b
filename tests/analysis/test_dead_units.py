"""Empty neurons, empty inputs and what is left without them, counted by hand for weights of every kind."""

import pytest
import torch

from rewire.analysis.dead_units import Units, count_units
from rewire.core import LayerSpec


def spec(*shape, **kind):
    return LayerSpec("layer", torch.Size(shape), **kind)


def flat(spec, *indices):
    """The flat positions of some elements of a weight."""
    return torch.tensor([torch.arange(spec.numel).view(spec.shape)[index] for index in indices])


def test_a_convolution_keeps_all_taps_of_the_channels_that_are_used():
    # Outputs 0 and 2 of 4, inputs 1 and 2 of 3; a tap more or less in a channel pair makes no difference.
    conv = spec(4, 3, 3, 2)
    active = flat(conv, (0, 1, 0, 0), (0, 1, 2, 1), (2, 2, 1, 1))
    assert count_units(conv, active) == Units(4, 2, 3, 1, remaining=2 * 2 * 6)


@pytest.mark.parametrize("kernel", [(), (5,), (3, 3), (2, 3, 4)])
def test_a_kernel_of_any_dimension(kernel):
    layer = spec(3, 2, *kernel)
    active = flat(layer, (1, 0, *[size - 1 for size in kernel]))
    assert count_units(layer, active) == Units(3, 2, 2, 1, remaining=torch.Size(kernel).numel())


def test_each_group_is_a_matrix_of_its_own():
    # Two groups of 2 outputs and 3 inputs. The first uses output 1 and inputs 0 and 2, the second outputs 2 and 3 and
    # input 4: (1 * 2 + 2 * 1) * 4 taps are left, not (3 * 3) * 4.
    conv = spec(4, 3, 2, 2, groups=2)
    active = flat(conv, (1, 0, 0, 0), (1, 2, 1, 1), (2, 1, 0, 1), (3, 1, 0, 0))
    assert count_units(conv, active) == Units(4, 1, 6, 3, remaining=4 * 4)


def test_a_depthwise_convolution_has_a_matrix_of_one_element_per_channel():
    conv = spec(3, 1, 3, 3, groups=3)
    assert count_units(conv, flat(conv, (0, 0, 1, 1), (2, 0, 0, 0))) == Units(3, 1, 3, 1, remaining=2 * 9)


def test_a_transposed_convolution_has_its_inputs_first():
    # Shape (inputs, outputs per group, taps): inputs 0 and 3 of 4; outputs 1 of group 0 and 2 (its first) of group 1.
    conv = spec(4, 2, 5, groups=2, transposed=True)
    active = flat(conv, (0, 1, 0), (3, 0, 4))
    assert count_units(conv, active) == Units(4, 2, 4, 2, remaining=2 * 5)
    plain = spec(3, 2, 2, 2, transposed=True)
    assert count_units(plain, flat(plain, (2, 0, 1, 1), (1, 0, 0, 0))) == Units(2, 1, 3, 1, remaining=2 * 4)


def test_nothing_is_active():
    assert count_units(spec(2, 3, 3, 3), torch.empty(0, dtype=torch.int64)) == Units(2, 2, 3, 3, remaining=0)
