"""Spawned and forked processes, threads and the workers of a DataLoader."""

import multiprocessing
import threading

import pytest
import torch
import torch.multiprocessing
from tests.loops.loops import STORES, assert_zero_off_mask, batch, both_stores, conv_net, masks, sparse, train
from torch.utils.data import DataLoader, Dataset, TensorDataset

pytestmark = pytest.mark.usefixtures("one_thread")


def evaluate(models, x, results):
    torch.set_num_threads(1)
    for model in models:
        before = [mask.clone() for mask in masks(model)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            y = model(x)
        train(model, optimizer, 2)
        assert_zero_off_mask(model)
        kept = all(torch.equal(a, b) for a, b in zip(masks(model), before, strict=True))
        results.put((y.numpy(), kept))


@pytest.mark.parametrize("way", ["spawn", "torch.multiprocessing"])
def test_models_of_both_stores_are_sent_to_a_spawned_process(way):
    trainings = [sparse(store) for store in STORES]
    for model, optimizer, _ in trainings:
        train(model, optimizer, 4)
    models = [model for model, _, _ in trainings]
    x = batch(0)[0]
    expected = [model(x).detach() for model in models]
    context = (multiprocessing if way == "spawn" else torch.multiprocessing).get_context("spawn")
    results = context.Queue()
    process = context.Process(target=evaluate, args=(models, x, results))
    process.start()
    found = [results.get(timeout=60) for _ in models]
    process.join(60)
    assert process.exitcode == 0
    for (y, kept), mine in zip(found, expected, strict=True):
        assert kept
        torch.testing.assert_close(torch.from_numpy(y), mine)
    for model, optimizer, rewirer in trainings:
        rewirer.check()
        train(model, optimizer, 3, begin=4)


class Labelled(Dataset):
    """Data that are labelled by sparse models: the models go to the workers."""

    def __init__(self, models):
        self.models = models

    def __len__(self):
        return 8

    def __getitem__(self, index):
        torch.set_num_threads(1)
        x = batch(index)[0]
        with torch.no_grad():
            return x, *(model(x) for model in self.models)


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_workers_of_a_data_loader_use_models_of_both_stores(context):
    trainings = [sparse(store) for store in STORES]
    for model, optimizer, _ in trainings:
        train(model, optimizer, 4)
    models = [model for model, _, _ in trainings]
    loader = DataLoader(Labelled(models), batch_size=None, num_workers=1, multiprocessing_context=context)
    for x, *outputs in loader:
        for y, model in zip(outputs, models, strict=True):
            torch.testing.assert_close(y, model(x))
    for _, _, rewirer in trainings:
        rewirer.check()


@both_stores
def test_workers_of_a_data_loader_change_nothing(store):
    found = []
    for workers in (0, 2):
        model, optimizer, rewirer = sparse(store)
        x, y = (torch.cat(parts) for parts in zip(*map(batch, range(8)), strict=True))
        loader = DataLoader(TensorDataset(x, y), batch_size=16, num_workers=workers)
        for xs, ys in loader:
            torch.nn.functional.cross_entropy(model(xs), ys).backward()
            optimizer.step()
            optimizer.zero_grad()
        rewirer.check()
        found.append([layer.active().tolist() for layer in rewirer.layers])
    assert found[0] == found[1]


def forked(model, x, results):
    """A forward pass; torch itself refuses a backward pass in a process that was forked after one."""
    torch.set_num_threads(1)
    with torch.no_grad():
        for scale in range(5):
            y = model(x * scale)
            model[0].bias.add_(1.0)
    results.put(float(y.sum()))


@both_stores
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_forked_process_leaves_its_parent_alone(store, dtype):
    model, optimizer, rewirer = sparse(store, "ggr", conv_net().to(dtype))
    train(model, optimizer, 4, shape=(3, 6, 6), dtype=dtype)
    x = batch(0, (3, 6, 6), dtype)[0]
    model.eval()
    with torch.no_grad():
        expected = model(x)
    before = expected.clone()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=forked, args=(model, x, results))
    process.start()
    results.get(timeout=60)
    process.join(60)
    assert torch.equal(expected, before)  # the child has written into memory of its own
    assert torch.equal(model(x), expected)
    rewirer.check()


def test_two_models_train_in_two_threads():
    def work(store, found, objects):
        model, optimizer, rewirer = objects
        train(model, optimizer, 10)
        found[store] = [layer.active().tolist() for layer in rewirer.layers]

    alone, together = {}, {}
    for store in STORES:
        work(store, alone, sparse(store))
    # Built one after the other: the first weights come from torch's one generator, which threads would share.
    threads = [threading.Thread(target=work, args=(store, together, sparse(store))) for store in STORES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
