"""Convolutions through windows against the direct way, per sample: 128 samples are whole tiles, 120 are not.

One thread: the kernels themselves, not how they share a machine. ``python -m benchmarks.windows`` runs this alone.
"""

from functools import partial

import torch

from benchmarks.measure import Work, interleaved
from benchmarks.packed import Row
from rewire.kernels.batch import ops
from rewire.kernels.geometry import Geometry
from rewire.kernels.memory import empty_map

LAYERS = ((64, 64), (128, 32), (256, 16), (512, 8), (512, 4))  # channels and size of the maps of VGG16 and ResNet-18
DENSITIES = (0.1, 0.03, 0.01)
WHOLE, BROKEN = 128, 120


def layer(channels: int, size: int, density: float) -> dict[str, float]:
    """Milliseconds per sample of both passes, both ways."""
    geometry = Geometry((channels, channels, 3, 3), padding=(1, 1))
    positions = torch.randperm(geometry.numel)[: int(density * geometry.numel)].sort().values.int()
    values = torch.randn(len(positions))
    works: dict[str, Work] = {}
    for batch in (WHOLE, BROKEN):
        x, grad = (empty_map(values, batch, channels, size, size).normal_() for _ in range(2))
        rest = (values, positions)
        works[f"forward {batch}"] = partial(ops.forward, x, *rest, None, geometry)
        works[f"backward {batch}"] = partial(ops.backward, grad, x, *rest, geometry, (True, True))
    return {name: 1000 * seconds / int(name.split()[1]) for name, seconds in interleaved(works, 5).items()}


def rows() -> list[Row]:
    threads = torch.get_num_threads()
    found: list[Row] = []
    torch.set_num_threads(1)
    for channels, size in LAYERS:
        for density in DENSITIES:
            times = layer(channels, size, density)
            for way in ("forward", "backward"):
                what = f"windows, {way}, {channels} channels of {size}x{size}, {1 - density:.0%}: direct over windows"
                ratio = times[f"{way} {BROKEN}"] / times[f"{way} {WHOLE}"]
                found.append({"what": what, "ratio": ratio, "target": None, "met": None, "milliseconds": times})
    torch.set_num_threads(threads)
    return found


if __name__ == "__main__":
    for one in rows():
        print(f"{one['what']:80} {one['ratio']:8.2f}", flush=True)
