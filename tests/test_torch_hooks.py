"""Private names of torch that order hooks do what this package relies on."""

import gc
import weakref

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


def test_the_object_of_a_hook_after_accumulation_is_held_weakly():
    class Listener:
        def __init__(self):
            self.parameter, self.calls = nn.Parameter(torch.ones(2)), []
            self.handle = _torch.call_after_accumulation(self.parameter, self.arrived, "it")

        def arrived(self, name):
            self.calls.append((name, self.parameter.grad.tolist()))

    listener = Listener()
    listener.parameter.sum().backward()
    assert listener.calls == [("it", [1, 1])]
    parameter, reference = listener.parameter, weakref.ref(listener.parameter)
    del listener
    gc.collect()
    parameter.sum().backward()  # nobody listens any more
    del parameter
    gc.collect()
    assert reference() is None
