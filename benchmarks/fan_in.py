"""Constant fan-in: a condensed matrix of values and input indices in torch, against ``rewire.pack``'s kernels.

``python -m benchmarks.fan_in`` runs this alone, on one thread.
"""

from functools import partial

import torch
from torch import Tensor, nn

import rewire
from benchmarks.measure import Work, interleaved
from rewire.parts import FanIn

LAYERS = ((512, 512), (2048, 2048), (3072, 768))  # inputs and outputs
DENSITIES = (0.1, 0.03)
BATCHES = (1, 64)


def condensed(x: Tensor, values: Tensor, inputs: Tensor) -> Tensor:
    """Each output gathers its inputs, all equally many, and sums the products."""
    return (x[:, inputs] * values).sum(2)


def layer_times(inputs: int, outputs: int, density: float, batch: int) -> dict[str, float]:
    """Seconds of one forward pass, three ways."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=density, start="uniform", constraint=FanIn()))
    dense = rewire.to_dense(model).eval()
    weight = dense.get_parameter("0.weight").detach()
    index = weight.ne(0).nonzero()[:, 1].view(outputs, -1)
    values = weight.gather(1, index)
    packed, x = rewire.pack(model), torch.randn(batch, inputs)
    with torch.inference_mode():
        torch.testing.assert_close(condensed(x, values, index), packed(x), rtol=1e-3, atol=1e-4)
        works: dict[str, Work] = {
            "dense": partial(dense, x),
            "pack": partial(packed, x),
            "condensed": partial(condensed, x, values, index),
        }
        return interleaved(works, 9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| layer | density | batch | dense over pack | condensed over pack |\n|---|---|---|---|---|")
    for inputs, outputs in LAYERS:
        for density in DENSITIES:
            for batch in BATCHES:
                times = layer_times(inputs, outputs, density, batch)
                ratios = [f"{times[way] / times['pack']:.1f}" for way in ("dense", "condensed")]
                print(f"| {inputs} to {outputs} | {density} | {batch} | {ratios[0]} | {ratios[1]} |", flush=True)
