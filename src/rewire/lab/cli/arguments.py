"""The arguments of each sub-command of ``rewire``: a class each, whose docstring is its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from rewire.lab.run import Run

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train one network and write its results.

    Examples:
      rewire train                                       GGR at 97 % on the embedded digits
      rewire train --method rigl --sparsity 0.99 --seed 1
      rewire train --data cifar100 --model resnet-18 --width 0.25 --epochs 10 --data-dir data
      rewire train --start connected-uniform --init fan_in --sparsity 0.99
      rewire train --resume runs/train/0123456789ab      go on with an interrupted run
      torchrun --nproc-per-node 2 -m rewire.lab train    one run on two processes: the same batch, shared out
      torchrun --nproc-per-node 2 -m rewire.lab train --fsdp

    """

    run: OmitArgPrefixes[Run]
    device: str = "cpu"
    """Where to train: cpu, cuda, cuda:1, mps, ..."""
    data_dir: Path | None = None
    """Folder with the extracted archives of the data set; without it $REWIRE_DATA and the cache are searched."""
    out: Path | None = None
    """Folder of the results; runs/train/ID by default."""
    resume: Path | None = None
    """Folder of a run to go on with; all other settings are taken from it."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into the folder."""
    fsdp: bool = False
    """Under torchrun: spread the model over the processes (FSDP2) instead of a copy for each (DDP)."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Carry out an experiment: all the runs of a table. What is done already is not repeated.

    Examples:
      rewire sweep demo                                  a few minutes on two cores
      rewire sweep table1 --scale laptop --workers 2 --data-dir data
      rewire sweep table3 --scale paper --device cuda --workers 1
      rewire sweep table1 --scale paper --device cuda --engine ray --address auto --out /shared/table1

    """

    name: Positional[str]
    """demo, table1, table3, table4, drop or stores."""
    scale: Literal["demo", "laptop", "paper"] = "demo"
    """How much: minutes on digits, hours on CIFAR-100, or as published."""
    workers: int = 2
    """How many runs at once; on a cluster as many as it has room for."""
    engine: Literal["local", "ray"] = "local"
    """Who carries the runs out: processes of this machine, or Ray."""
    address: str | None = None
    """The Ray cluster (auto: the one this machine belongs to); without it Ray is started on this machine alone."""
    cpus: float = 1
    """With Ray: processors of each run."""
    gpus: float | None = None
    """With Ray: GPUs of each run, a share of one allowed; one by default where the device is cuda."""
    device: str = "cpu"
    """Where to train."""
    data_dir: Path | None = None
    """Folder with the extracted archives of the data set."""
    out: Path | None = None
    """Folder of the results; runs/NAME-SCALE by default."""
    store: Literal["masked", "packed"] | None = None
    """Who holds the weights, in place of what the experiment says: masked, but for stores, which compares both."""
    tensorboard: bool = False
    """Also write curves for TensorBoard."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Print the tables of a folder of runs and write report.html, tables and figures.

    Examples:
      rewire report runs/demo-demo
      rewire report runs/table4-paper --layer 2.layers.0

    """

    directory: Positional[Path]
    """A folder with runs below it."""
    layer: str | None = None
    """The layer whose masks are shown side by side (figure 3)."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """List the data sets, or fetch one from its publisher.

    Examples:
      rewire data list
      rewire data fetch cifar100

    """

    action: Positional[Literal["list", "fetch"]]
    """What to do."""
    name: Positional[str | None] = None
    """Which data set to fetch."""


@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the methods, each as the composition of its parts.

    Examples:
      rewire methods

    """


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Show what is done, running, failed and waiting below a folder.

    Examples:
      rewire runs runs
      rewire runs runs/demo-demo

    """

    directory: Positional[Path] = RUNS
    """A folder with runs below it."""


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Show what a network is made of: densities, empty neurons, multiply-adds, what was explored and what changed.

    Examples:
      rewire inspect runs/train/0123456789ab
      rewire inspect runs/train/0123456789ab --against runs/train/ba9876543210
      rewire inspect runs/train/0123456789ab --json > network.json
      rewire inspect runs/train/0123456789ab --pictures pictures

    """

    network: Positional[Path]
    """The folder of a run, or its checkpoint."""
    against: Path | None = None
    """Another run or checkpoint: how much of its topology is the same."""
    json: bool = False
    """Print JSON instead of a table."""
    pictures: Path | None = None
    """Also draw layer densities, masks with neuron histograms and density over time into this folder."""


@dataclass(frozen=True, kw_only=True)
class Shrink:
    """Remove empty neurons and unused inputs, exactly, and write the smaller network.

    Examples:
      rewire shrink runs/train/0123456789ab -o small.safetensors
      rewire shrink runs/train/0123456789ab -o small.pt --packed

    """

    network: Positional[Path]
    """The folder of a run, or its checkpoint."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The file: .safetensors (rewire.load_sparse reads it), or .pt for torch.load(weights_only=True)."""
    packed: bool = False
    """Check the packed network as well, and write only the weights that exist into a .pt (a .safetensors has no
    others)."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a network for other tools, and read it back to see that it is the same.

    Examples:
      rewire export runs/train/0123456789ab --to safetensors -o network.safetensors
      rewire export runs/train/0123456789ab --to csr -o network.npz
      rewire export runs/train/0123456789ab --to onnx --shrink -o network.onnx

    """

    network: Positional[Path]
    """The folder of a run, or its checkpoint."""
    to: Literal["dense", "csr", "safetensors", "onnx"]
    """dense: all weights; safetensors: those that exist; csr: matrices for SciPy and torch; onnx."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The file to write."""
    shrink: bool = False
    """Remove empty neurons and unused inputs first."""


COMMANDS: dict[str, type] = {
    "train": Train,
    "sweep": Sweep,
    "report": Report,
    "inspect": Inspect,
    "shrink": Shrink,
    "export": Export,
    "data": Data,
    "methods": Methods,
    "runs": Runs,
}
