"""Convolutions with im2col tiles against the direct way, per sample: 128 samples are whole tiles, 120 are not.

One thread, so that the kernels are measured and not how they share a machine. ``python -m benchmarks.im2col`` runs this
alone.
"""

from functools import partial

import torch

from benchmarks.measure import Work, interleaved
from benchmarks.packed import Row
from rewire.kernels.batch import conv
from rewire.kernels.geometry import Geometry
from rewire.kernels.memory import empty_hwcn

LAYERS = ((64, 64), (128, 32), (256, 16), (512, 8), (512, 4))  # channels and size of activations in VGG16 and ResNet-18
DENSITIES = (0.1, 0.03, 0.01)
TILED, DIRECT = 128, 120  # batch sizes: a multiple of the tile, and none


def layer_times(channels: int, size: int, density: float) -> dict[str, float]:
    """Milliseconds per sample of both passes, both ways."""
    geometry = Geometry((channels, channels, 3, 3), padding=(1, 1))
    positions = torch.randperm(geometry.numel)[: int(density * geometry.numel)].sort().values.int()
    values = torch.randn(len(positions))
    works: dict[str, Work] = {}
    for batch in (TILED, DIRECT):
        x, grad = (empty_hwcn(values, batch, channels, size, size).normal_() for _ in range(2))
        works[f"forward {batch}"] = partial(conv.forward, x, values, positions, None, geometry)
        works[f"backward {batch}"] = partial(conv.backward, grad, x, values, positions, geometry, (True, True))
    return {name: 1000 * seconds / int(name.split()[1]) for name, seconds in interleaved(works, 5).items()}


def rows() -> list[Row]:
    threads = torch.get_num_threads()
    table: list[Row] = []
    torch.set_num_threads(1)
    for channels, size in LAYERS:
        for density in DENSITIES:
            times = layer_times(channels, size, density)
            for way in ("forward", "backward"):
                layer = f"{channels} channels of {size}x{size}, {1 - density:.0%}"
                ratio = times[f"{way} {DIRECT}"] / times[f"{way} {TILED}"]
                what = f"im2col, {way}, {layer}: direct over im2col"
                table.append({"what": what, "ratio": ratio, "target": None, "met": None, "milliseconds": times})
    torch.set_num_threads(threads)
    return table


if __name__ == "__main__":
    for row in rows():
        print(f"{row['what']:80} {row['ratio']:8.2f}", flush=True)
