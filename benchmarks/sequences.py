"""Training transformers with the packed store against dense PyTorch: ``python -m benchmarks.sequences``.

Both networks are ordinary torch code: pre-norm blocks, ``scaled_dot_product_attention``, GELU, AdamW. Their linear
layers are sparse to the same density (the start "uniform"). Dense and packed steps are timed in turns, as in
``benchmarks.packed``; ``--profile`` shows where the time of a packed step goes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rewire
from benchmarks.kernel_times import Stopwatch
from benchmarks.measure import Work, interleaved
from benchmarks.packed import SPARSITIES, Row, row
from rewire.kernels import library


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return y


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Stack(nn.Module):
    """Blocks between an embedding of the tokens and a dense head on their mean."""

    def __init__(self, width: int, heads: int, depth: int, tokens: int, causal: bool) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(48, width), nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*[Block(width, heads, causal) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x) + self.position)
        y: Tensor = self.head(self.norm(x).mean(1))
        return y


@dataclass(frozen=True)
class Cell:
    """One network: its size, the input, and the speed-ups to reach at the three sparsities."""

    size: dict[str, Any]
    batch: int
    targets: tuple[float, float, float]


CELLS = {
    "vit": Cell({"width": 384, "heads": 6, "depth": 6, "tokens": 64, "causal": False}, 64, (1.5, 2.6, 3.3)),
    "gpt": Cell({"width": 768, "heads": 12, "depth": 4, "tokens": 128, "causal": True}, 16, (2.0, 4.0, 5.5)),
}


def step_of(cell: Cell, sparsity: float | None, autocast: bool = False) -> Work:
    """One training step; dense if there is no sparsity."""
    torch.manual_seed(0)
    model = Stack(**cell.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if sparsity is not None:
        method = rewire.static(density=1 - sparsity, start="uniform")
        rewire.sparsify(model, optimizer, method, store="packed", exclude=("embed", "head"))
    x, y = torch.randn(cell.batch, cell.size["tokens"], 48), torch.randint(10, (cell.batch,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rows(options: argparse.Namespace | None = None) -> Iterator[Row]:
    options = options or parse([])
    before = torch.get_num_threads()
    for name in options.networks:
        cell = CELLS[name]
        works = {"dense": step_of(cell, None, options.autocast)}
        works |= {f"{sparsity:.0%}": step_of(cell, sparsity, options.autocast) for sparsity in options.sparsities}
        for threads in options.threads:
            torch.set_num_threads(threads)
            median = interleaved(works, options.rounds)
            for sparsity in options.sparsities:
                what = f"train {name} uniform {sparsity:.0%}, batch {cell.batch}, {threads} threads"
                target = cell.targets[SPARSITIES.index(sparsity)]
                yield row(what, median["dense"] / median[f"{sparsity:.0%}"], target, median)
    torch.set_num_threads(before)


def profile(options: argparse.Namespace) -> None:
    """The time of a packed step, function by function: torch's profiler, and the native kernels beside it."""
    stopwatch = Stopwatch(library.native())
    with library.use(stopwatch):
        for name in options.networks:
            for sparsity in options.sparsities:
                torch.set_num_threads(options.threads[0])
                step = step_of(CELLS[name], sparsity, options.autocast)
                for _ in range(2):
                    step()
                stopwatch.seconds = {}
                with torch.profiler.profile() as profiler:
                    step()
                print(f"{name} {sparsity:.0%}, {options.threads[0]} threads")
                for kernel, seconds in sorted(stopwatch.seconds.items(), key=lambda part: -part[1]):
                    print(f"    {kernel:34} {1000 * seconds:8.1f} ms")
                print(
                    profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=40)
                )


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sequences")
    parser.add_argument("--networks", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--sparsities", nargs="+", type=float, choices=SPARSITIES, default=SPARSITIES)
    parser.add_argument("--threads", nargs="+", type=int, default=(2, 1))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--autocast", action="store_true", help="bfloat16 activations, dense and packed")
    parser.add_argument("--profile", action="store_true", help="where the time of a packed step goes")
    return parser.parse_args(words)


def main() -> None:
    options = parse()
    if options.profile:
        return profile(options)
    for result in rows(options):
        times = " ".join(f"{kind} {value:.1f}" for kind, value in result["milliseconds"].items())  # type: ignore[attr-defined]
        print(f"{result['what']:60} {result['ratio']:8.2f}   {result['target']}   {times}", flush=True)
    return None


if __name__ == "__main__":
    main()
