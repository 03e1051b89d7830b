"""Films of small trainings, and what they should show."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import rewire


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def sparse(store="masked", method=rewire.ggr, **settings):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"density": 0.1, "every": 4, "until": 40, "fraction": 0.3, "start": "uniform"} | settings
    return model, optimizer, rewire.sparsify(model, optimizer, method(**settings), store=store)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded(folder, **settings):
    """A film of nine rewirings and two sets of metrics; also the rewirer, whose history is the truth."""
    model, optimizer, rewirer = sparse(**settings)
    with rewire.record(rewirer, folder, title="small") as film:
        train(model, optimizer, 20)
        film.log(loss=1.5, accuracy=0.25)
        train(model, optimizer, 20, first=20)
        film.log(loss=0.5, accuracy=0.75)
    return rewirer, film.path


def plain(lines):
    """Lines with lists instead of arrays, without metrics, to compare them."""
    lists = [
        [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in one.items()} for one in line["layers"]]
        for line in lines
        if line["kind"] != "metrics"
    ]
    return lists, [line["step"] for line in lines if line["kind"] != "metrics"]
