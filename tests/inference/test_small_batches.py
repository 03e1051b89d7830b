"""A few samples in one native call: each gets what it gets alone, and the faster way runs."""

import pytest
import torch
from tests.graphs import Net, agrees, in_threads, program, scattered, small
from torch import nn

import rewire
from rewire.inference import graph as packed_graph
from rewire.inference.graph import LAYER_BY_LAYER, PADDED
from rewire.kernels import library
from rewire.kernels.tuning import MAX_SAMPLES

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
MODELS = {
    "convolution": (small, (3, 8, 8)),
    "residual": (lambda: scattered(Net(lambda net, x: (net.one(x) + x).relu() + net.two(x))), (4, 9, 7)),
    "linear": (lambda: scattered(nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5)), 0.3), (40,)),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [2, 3, 4, 8, 15])
@pytest.mark.parametrize("kind", MODELS)
def test_each_sample_gets_what_it_gets_alone(kind, batch, threads, monkeypatch):
    monkeypatch.setattr(packed_graph, "thread_count", lambda: threads)
    monkeypatch.setattr("rewire.kernels.sample.program.thread_count", lambda: threads)
    monkeypatch.setattr("rewire.kernels.sample.program.SAMPLE_THREADS_PRODUCTS", 0)
    build, shape = MODELS[kind]
    model = build()
    fast, x = rewire.pack(model), torch.randn(batch, *shape)
    agrees(fast, model, x)
    prepared = program(fast, x)
    alone = torch.cat([fast(sample) for sample in x.split(1)])
    for workers in {1, 2, min(batch, threads)}:
        for _ in range(2):  # a second run must find its memory in order
            assert torch.equal(prepared.run(x, workers), alone)
    torch.testing.assert_close(fast.forward(x), alone, rtol=1e-4, atol=1e-5)
    padded = packed_graph._run_padded(fast, x)
    assert padded.shape == alone.shape
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)


def fastest(monkeypatch, way):
    """Let all ways but one take a second; ``way`` is the name of the function that is called."""
    monkeypatch.setattr(packed_graph, "_seconds", lambda run: float(run.func.__name__ != way))


def test_the_faster_way_is_measured_once_for_each_size(monkeypatch):
    model = small()
    fast, x = rewire.pack(model), torch.randn(4, 3, 8, 8)
    fastest(monkeypatch, "_run_alone")
    agrees(fast, model, x)
    prepared = program(fast, x)
    (key,) = prepared.workers
    assert key[0] == 4
    assert prepared.workers[key] > 0
    monkeypatch.setattr(packed_graph, "_seconds", lambda run: pytest.fail("measured again"))
    agrees(fast, model, x)
    for batch, name, way in ((5, "forward", LAYER_BY_LAYER), (6, "_run_padded", PADDED)):
        fastest(monkeypatch, name)
        for _ in range(2):
            agrees(fast, model, torch.randn(batch, 3, 8, 8))
        assert [chosen for key, chosen in prepared.workers.items() if key[0] == batch] == [way]


def test_batches_of_any_size_share_one_program():
    model = small()
    fast = rewire.pack(model)
    for batch in (*range(1, 17), MAX_SAMPLES, MAX_SAMPLES + 1, 64):
        agrees(fast, model, torch.randn(batch, 3, 8, 8))
    assert len(fast.programs.by_shape) == 1
    assert {batch for batch, _ in program(fast, torch.randn(1, 3, 8, 8)).workers} <= set(range(2, MAX_SAMPLES + 1))
    assert fast(torch.randn(0, 3, 8, 8)).shape == (0, 5)


@pytest.mark.parametrize(
    "mix",
    [
        lambda net, x: net.one(x).reshape(1, -1),
        lambda net, x: net.linear(net.one(x).mean((2, 3)).view(1, -1)[:, :4]),
    ],
)
def test_a_model_that_mixes_samples_runs_layer_by_layer(mix):
    model = scattered(Net(mix))
    fast = rewire.pack(model)
    for batch in (1, 2, 4):
        agrees(fast, model, torch.randn(batch, 4, 3, 3))
    prepared = program(fast, torch.randn(1, 4, 3, 3))
    assert prepared is None or set(prepared.workers.values()) <= {LAYER_BY_LAYER}


def test_without_measurements_where_algorithms_must_be_deterministic(monkeypatch):
    model = small()
    fast, x = rewire.pack(model), torch.randn(6, 3, 8, 8)
    monkeypatch.setattr(packed_graph, "_seconds", lambda run: pytest.fail("measured"))
    torch.use_deterministic_algorithms(True)
    try:
        y = fast(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(y, torch.cat([fast(sample) for sample in x.split(1)]))


def test_threads_do_not_share_memory():
    model, wrong = small(), []
    fast = rewire.pack(model)

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for index in range(30):
            x = torch.randn(2 + index % 5, 3, 8, 8, generator=generator)
            with torch.no_grad():
                wrong.append(not torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5))

    in_threads(work)
    assert len(wrong) == 120
    assert not any(wrong)
