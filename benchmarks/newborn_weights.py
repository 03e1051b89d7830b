"""The loss around rewirings of a small transformer under AdamW: ``python -m benchmarks.newborn_weights``.

A character-level transformer of about 0.3 million parameters on a few files of Python's standard library, 90 % sparse,
rewired every 100 steps. Columns: ``jump``, how much the loss on fixed pieces of text rises in the ten steps after a
rewiring, on average over the rewirings, and ``worst`` at the worst of them; ``move``, by how many learning rates
newborn weights move at their first step, on average; the mean loss of training, and the final one on the fixed pieces.
To compare versions, run it with ``PYTHONPATH`` set to either.
"""

import argparse
import json
import statistics
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rewire
from rewire.core.layer import Signal

FILES = ("argparse.py", "ast.py", "inspect.py", "pathlib.py", "typing.py", "tarfile.py")
WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 104, 4, 2, 32, 8
STEPS, EVERY, AFTER = 1000, 100, 10  # AFTER: steps after a rewiring that are looked at


class Block(nn.Module):
    """Attention and a feed-forward layer, normalised before."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: batch, length, width."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        down: Tensor = self.down(F.gelu(self.up(self.norms[1](x))))
        return x + down


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: batch, length; returns logits."""
        y: Tensor = self.blocks(self.embed(x) + self.position.weight[: x.shape[1]])
        logits: Tensor = self.head(self.norm(y))
        return logits


def text() -> tuple[Tensor, int]:
    """The files as numbers of characters, and how many different ones there are."""
    library = Path(sysconfig.get_paths()["stdlib"])
    content = "".join((library / name).read_text() for name in FILES)
    characters = {character: number for number, character in enumerate(sorted(set(content)))}
    return torch.tensor([characters[character] for character in content]), len(characters)


def draw(data: Tensor, generator: torch.Generator, size: int) -> Tensor:
    """Random pieces of the text, one character longer than what is read."""
    begins = torch.randint(len(data) - LENGTH - 1, (size,), generator=generator)
    return data[begins[:, None] + torch.arange(LENGTH + 1)]


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """The mean cross entropy."""
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def run(name: str, seed: int, data: Tensor, characters: int, lr: float) -> dict[str, float]:
    """Train once. ``jump``: how much the loss on fixed pieces rises over its value at the rewiring, at worst."""
    torch.manual_seed(seed)
    model = Transformer(characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    method = rewire.METHODS[name](density=0.1, every=EVERY, until=STEPS - EVERY, fraction=0.3)
    rewirer = rewire.sparsify(model, optimizer, method, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    fixed = draw(data, torch.Generator().manual_seed(1), 4 * BATCH)
    losses, rises, moves, at_rewiring, since = [], [], [], 0.0, AFTER
    for _step in range(STEPS):
        before = {layer.name: (layer.active().clone(), layer.read(Signal.WEIGHT)) for layer in rewirer.layers}
        loss = loss_of(model, draw(data, generator, BATCH))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        rewired = len(rewirer.history) and rewirer.history[-1].step == rewirer.step
        if since == 0:
            moves += list(_moves(rewirer, before, lr))
        if rewired or since < AFTER:
            with torch.no_grad():
                now = loss_of(model, fixed).item()
            if rewired:
                at_rewiring, since = now, 0
                rises.append(float("-inf"))
            else:
                since += 1
                rises[-1] = max(rises[-1], now - at_rewiring)
    with torch.no_grad():
        final = loss_of(model, fixed).item()
    moved = statistics.mean(moves)
    return {"jump": statistics.mean(rises), "worst": max(rises), "move": moved, "mean": statistics.mean(losses)} | {
        "final": final
    }


def _moves(rewirer: rewire.Rewirer, before: dict[str, tuple[Tensor, Tensor]], lr: float) -> Iterator[float]:
    """By how many learning rates newborn weights moved at their first step, on average in each layer."""
    for layer in rewirer.layers:
        positions, was = before[layer.name]
        newborn = was.abs() == torch.tensor(1e-10)
        if newborn.any():
            assert torch.equal(layer.active(), positions)
            yield float((layer.read(Signal.WEIGHT) - was)[newborn].abs().mean()) / lr


def main() -> None:
    """Print a table of means and standard deviations over the seeds, and all numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--methods", nargs="+", default=["rigl", "ggr"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, characters = text()
    size = sum(p.numel() for p in Transformer(characters).parameters())
    print(f"rewire from {Path(rewire.__file__).parent}; {size:,} parameters, {len(data):,} characters")
    for name in arguments.methods:
        rows = [run(name, seed, data, characters, arguments.lr) for seed in range(arguments.seeds)]
        cells = {
            key: f"{statistics.mean(v):.4f} ± {statistics.pstdev(v) if len(v) < 2 else statistics.stdev(v):.4f}"
            for key in rows[0]
            if (v := [row[key] for row in rows])
        }
        print(f"| {name} | {' | '.join(cells.values())} |  ({', '.join(cells)})")
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
