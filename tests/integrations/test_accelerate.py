"""Accelerate: ``sparsify`` before or after ``prepare`` trains like a plain loop; ``save_state`` resumes it."""

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rewire

pytestmark = pytest.mark.filterwarnings("ignore")  # of Accelerate, about its own calls of torch
METHOD = rewire.ggr(density=0.2, every=2, until=20)


def loader():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 16, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8)


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def prepared(order):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = parts()
    if order == "before":
        rewirer = rewire.sparsify(model, optimizer, METHOD)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    if order == "after":
        rewirer = rewire.sparsify(model, optimizer, METHOD)
    accelerator.register_for_checkpointing(rewirer)
    return accelerator, model, optimizer, batches, rewirer


def epoch(accelerator, model, optimizer, batches):
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def plain(epochs):
    model, optimizer = parts()
    rewirer = rewire.sparsify(model, optimizer, METHOD)
    for _ in range(epochs):
        for index, (x, y) in enumerate(loader()):
            (F.cross_entropy(model(x), y) / 2).backward()
            if index % 2 == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return model, rewirer


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("order", ["before", "after"])
def test_it_is_the_training_of_a_plain_loop(order):
    accelerator, model, optimizer, batches, rewirer = prepared(order)
    for _ in range(2):
        epoch(accelerator, model, optimizer, batches)
    expected, plain_rewirer = plain(2)
    assert rewirer.history == plain_rewirer.history
    assert len(rewirer.history) == 4
    assert same(model, expected)


def test_save_state_and_load_state_go_on_bit_for_bit(tmp_path):
    accelerator, *objects, _ = prepared("after")
    epoch(accelerator, *objects)
    accelerator.save_state(str(tmp_path))
    accelerator, *objects, rewirer = prepared("after")
    accelerator.load_state(str(tmp_path))
    epoch(accelerator, *objects)
    assert rewirer.step == 8
    assert same(objects[0], plain(2)[0])
