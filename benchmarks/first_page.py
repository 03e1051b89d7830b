"""The first page of ``docs/benchmarks.md``: training speed of each network against sparsity, a chart and a table.

``python -m benchmarks.first_page`` measures what is missing in ``docs/results/speed.jsonl``, a line a network, on two
threads; then it writes the table into the document and the charts beside it. ``--write`` only writes them. Measuring
takes about ten minutes, in which nothing else may run.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import packed, sequences
from benchmarks.chart import LOOKS, draw
from benchmarks.packed import SPARSITIES, Row
from rewire.lab.environment import environment

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "results" / "speed.jsonl", DOCS / "benchmarks.md"
BEGIN, END = "<!-- speed-ups: begin -->", "<!-- speed-ups: end -->"
THREADS = ("--threads", "2")


def convolutional(name: str) -> Callable[[], Iterator[Row]]:
    """The training rows of a network of ``benchmarks.packed``, from an ERK start."""
    words = ["--networks", name, "--starts", "erk", "--kinds", "train", *THREADS]
    return lambda: (row for row in packed.each(packed.parse(words)) if str(row["what"]).startswith("train"))


def transformer(name: str) -> Callable[[], Iterator[Row]]:
    """The training rows of a network of ``benchmarks.sequences``."""
    return lambda: sequences.rows(sequences.parse(["--networks", name, *THREADS]))


# By the name in the chart: what the table adds to it, and how it is measured.
NETWORKS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "MLP": ("784-4096-4096-10, batch 128", convolutional("mlp")),
    "VGG16": ("batch norm, 64x64, batch 128", convolutional("vgg16")),
    "ResNet-18": ("CIFAR, batch 128", convolutional("resnet-18")),
    "GPT": ("width 768, 4 blocks, 128 tokens, batch 16, AdamW", transformer("gpt")),
    "ViT": ("width 384, 6 blocks, 64 tokens, batch 64, AdamW", transformer("vit")),
    "MobileNetV2": ("CIFAR, batch 128", convolutional("mobilenet-v2")),
    "MobileNetV2, half width": ("CIFAR, batch 128", convolutional("mobilenet-v2-half")),
    "VGG16, quarter width": ("CIFAR, batch 128", convolutional("vgg16-quarter")),
    "ResNet-18, quarter width": ("CIFAR, batch 128", convolutional("resnet-18-quarter")),
}


def measure(path: Path) -> None:
    """Append the speed-ups of the networks that the file lacks."""
    known = read(path)
    for name in NETWORKS:
        if name not in known:
            # A process of its own, as in a training: after other networks, packed steps were up to twice as slow.
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                speedups = process.submit(speedups_of, name).result()
            line = {"network": name, "speedups": speedups, "environment": environment("cpu")}
            print(json.dumps(line), flush=True)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def speedups_of(name: str) -> list[float]:
    """The speed-ups of a network at the three sparsities."""
    _, rows = NETWORKS[name]
    return [round(float(row["ratio"]), 2) for row in rows()]  # type: ignore[arg-type]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The measured lines by network."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["network"]: line for line in lines}


def table(measured: dict[str, dict[str, Any]]) -> str:
    """One row a network, fastest first."""
    rows = ["| training | " + " | ".join(f"{sparsity:.0%}" for sparsity in SPARSITIES) + " |", "|---|--:|--:|--:|"]
    for name, line in ordered(measured).items():
        cells = " | ".join(f"{value:.1f}" for value in line)
        rows.append(f"| **{name}** ({NETWORKS[name][0]}) | {cells} |")
    return "\n".join(rows).replace("%", " %")


def ordered(measured: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """The speed-ups of each network, fastest first."""
    names = sorted(measured, key=lambda name: -measured[name]["speedups"][-1])
    return {name: measured[name]["speedups"] for name in names}


def documents(page: str, measured: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """The content of the page and of the charts."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    texts = {PAGE: f"{before}{BEGIN}\n{table(measured)}\n{END}{after}"}
    sparsities = [f"{100 * sparsity:g} %" for sparsity in SPARSITIES]
    charts = {name: draw(sparsities, ordered(measured), look) for name, look in LOOKS.items()}
    return texts | {DOCS / "_static" / f"speedups-{name}.svg": chart for name, chart in charts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="measure nothing, only write the table and the charts")
    if not parser.parse_args().write:
        measure(RESULTS)
    for path, content in documents(PAGE.read_text(), read(RESULTS)).items():
        path.write_text(content)
        print(path)


if __name__ == "__main__":
    main()
