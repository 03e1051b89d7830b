"""Private names of torch that order hooks do what this package relies on."""

import torch
from torch import nn

from rewire import _torch


def test_a_hook_can_be_called_before_those_that_are_there():
    parameter, seen = nn.Parameter(torch.ones(2)), []
    parameter.register_hook(lambda grad: 3 * grad)
    handle = parameter.register_hook(lambda grad: seen.append(grad.tolist()))
    _torch.call_first(parameter, handle)
    parameter.sum().backward()
    assert seen == [[1, 1]]
    assert parameter.grad.tolist() == [3, 3]
    handle.remove()
    parameter.sum().backward()
    assert parameter.grad.tolist() == [6, 6]
    assert len(seen) == 1


def test_the_gradient_of_an_output_is_taken_after_its_hooks():
    x, seen = torch.ones(2, requires_grad=True), []
    y = 2 * x
    _torch.call_with_output_gradient(y, lambda grad: seen.append(grad.tolist()))
    y.register_hook(lambda grad: 3 * grad)
    y.mul_(1)  # in place: hooks stay with what y was
    y.sum().backward()
    assert seen == [[3, 3]]
    assert x.grad.tolist() == [6, 6]
