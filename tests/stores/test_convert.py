"""Conversions of whole models."""

import pytest
import torch
from torch import nn

import rewire


class Remembering(nn.Module):
    """Keeps a tensor of its last forward pass, as recurrent models do with their states."""

    def __init__(self):
        super().__init__()
        self.layer, self.state = nn.Linear(4, 4), None

    def forward(self, x):
        self.state = self.layer(x)
        return self.state


@pytest.mark.parametrize(
    "convert", [rewire.to_dense, rewire.pack, lambda model: rewire.shrink(model, torch.zeros(1, 4))]
)
def test_a_model_that_remembers_its_last_pass_is_refused_by_name(convert):
    model = nn.Sequential(Remembering())
    model(torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"cannot be copied, because 0.state belongs to the graph of its last forward"):
        convert(model)
    with torch.no_grad():
        model(torch.zeros(1, 4))
    assert torch.equal(rewire.to_dense(model)(torch.ones(1, 4)), model(torch.ones(1, 4)))
