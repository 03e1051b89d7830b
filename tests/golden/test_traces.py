"""A change that must not alter what is computed shows the same trace: step -> loss, rewiring -> nnz per layer.

Run ``python -m tests.golden.test_traces`` to write the traces anew, and say in the commit why they changed.
"""

import functools
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import rewire
from rewire.parts import NM, Blocks, Channels, FanIn

FOLDER = Path(__file__).parent
METHODS = tuple(rewire.METHODS)
CONSTRAINTS = {"2_4": NM(2, 4), "fan_in": FanIn(), "blocks": Blocks(2), "channels": Channels()}
TRACES = [*METHODS, *(f"ggr_{constraint}" for constraint in CONSTRAINTS)]


@functools.cache
def trace(name):
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0)  # float64, so that no processor's rounding decides what is rewired
    labels = torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 10)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            bound = parameter.shape[-1] ** -0.5
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1) * bound)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    method, _, constraint = (name, "", "") if name in METHODS else name.partition("_")
    settings = {"constraint": CONSTRAINTS[constraint]} if constraint else {}
    method = rewire.METHODS[method](density=0.1, every=10, until=80, fraction=0.3, **settings)
    rewirer = rewire.sparsify(model, optimizer, method)
    losses, nnz = [], []
    for _step in range(100):
        rows = torch.randint(len(labels), (64,), generator=generator)
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        nnz.append([layer.nnz for layer in rewirer.layers])
    return {"loss": losses, "nnz": nnz[9::10]}


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_is_the_golden_one(name):
    golden, now = json.loads((FOLDER / f"{name}.json").read_text()), trace(name)
    assert now["nnz"] == golden["nnz"]
    assert now["loss"] == pytest.approx(golden["loss"], rel=1e-9)


def test_ggr_moves_densities_and_rigl_does_not():
    traces = {name: trace(name)["nnz"] for name in ("ggr", "rigl")}
    assert len({tuple(row) for row in traces["rigl"]}) == 1
    assert len({tuple(row) for row in traces["ggr"]}) > 3
    assert len({sum(row) for rows in traces.values() for row in rows}) == 1


if __name__ == "__main__":
    for name in TRACES:
        (FOLDER / f"{name}.json").write_text(json.dumps(trace(name)) + "\n")
