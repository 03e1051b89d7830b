"""The arguments of the sub-commands that read finished runs: report, collect, repeat and runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

RUNS = Path("runs")
OutputFile = Annotated[Path, tyro.conf.arg(aliases=["-o"])]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Print the tables of a folder of runs, and write report.html, tables and figures.

    Examples:
      rewire report runs/demo-demo
      rewire report runs/table4-paper --layer 2.layers.0
      rewire report docs/results/evidence.jsonl --out results
      rewire report docs/results/evidence.jsonl --page docs/results.md
      rewire report runs/compare --rows method --columns sparsity --baseline ggr

    """

    directory: Positional[Path]
    """A folder with runs below it, or a file that `rewire collect` wrote."""
    layer: str | None = None
    """The layer whose masks are shown side by side (figure 3)."""
    rows: str | None = None
    """Settings that distinguish the rows of a table over all runs, separated by commas, such as method,growth."""
    columns: str | None = None
    """Settings that distinguish its columns, such as sparsity,start."""
    baseline: str | None = None
    """The row that the others are compared with, seed by seed, such as ggr."""
    out: Path | None = None
    """The folder to write to; by default the folder of the runs, or one beside the file that is named after it."""
    page: Path | None = None
    """Write the verdicts on the paper's claims to this Markdown file instead, and its figures beside the runs."""
    scale: Literal["demo", "workstation"] = "workstation"
    """With --page: the scale of the experiment evidence that the runs are of."""


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Write the finished runs of a folder into one small file: a line of JSON for each, without masks and checkpoints.

    Examples:
      rewire collect runs/demo-demo -o demo.jsonl
      rewire collect runs/more -o demo.jsonl --add
      rewire report demo.jsonl

    """

    directory: Positional[Path]
    """A folder with runs below it."""
    out: OutputFile
    """The file to write."""
    add: bool = False
    """Keep the runs that the file holds already, and add those of the folder."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Train a finished run again from its stored settings, and check that every number is the same, bit for bit.

    Examples:
      rewire repeat docs/results/evidence.jsonl          a run at random
      rewire repeat runs/demo-demo --id 60c73f

    """

    runs: Positional[Path]
    """A folder with runs below it, or a file that `rewire collect` wrote."""
    id: str | None = None
    """The first digits of the run's id; by default a run is chosen at random."""
    threads: int = 1
    """The number of threads; it changes the last bits of sums, so it must be what the run had."""
    data_dir: Path | None = None
    """The folder with the extracted archives of the data set."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the runs below a folder: planned, running, done and failed, and the settings in which they differ.

    Examples:
      rewire runs runs
      rewire runs runs/demo-demo

    """

    directory: Positional[Path] = RUNS
    """A folder with runs below it."""
