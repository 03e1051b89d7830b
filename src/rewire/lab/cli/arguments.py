"""The arguments of each sub-command of ``rewire``: one class each, whose docstring is its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction

from rewire.lab.cli.reading_arguments import RUNS as RUNS
from rewire.lab.cli.reading_arguments import Collect as Collect
from rewire.lab.cli.reading_arguments import OutputFile
from rewire.lab.cli.reading_arguments import Repeat as Repeat
from rewire.lab.cli.reading_arguments import Report as Report
from rewire.lab.cli.reading_arguments import Runs as Runs
from rewire.lab.run import Run

NetworkPath = Positional[Path]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train one network and write its results.

    Examples:
      rewire train                                       GGR at 97 % sparsity on the digits of scikit-learn
      rewire train --method rigl --sparsity 0.99 --seed 1
      rewire train --method ideas/cautious.py:cautious   a method of your own: a function in a file
      rewire train --data cifar100 --model resnet-18 --width 0.25 --epochs 10 --data-dir data
      rewire train --start connected-uniform --init fan_in --sparsity 0.99
      rewire train --resume runs/train/NAME              continue an interrupted run
      torchrun --nproc-per-node 2 -m rewire.lab train    one run on two processes, each with its part of every batch
      torchrun --nproc-per-node 2 -m rewire.lab train --fsdp

    """

    run: OmitArgPrefixes[Run]
    device: str = "cpu"
    """The device to train on: cpu, cuda, cuda:1, mps, ..."""
    data_dir: Path | None = None
    """The folder with the extracted archives of the data set; by default $REWIRE_DATA, then the cache."""
    out: Path | None = None
    """The folder for the results; by default runs/train/NAME."""
    resume: Path | None = None
    """The folder of a run to continue; all other settings are taken from it."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into the folder."""
    film: bool = False
    """Also record every rewiring into the folder, for `rewire watch`."""
    fsdp: bool = False
    """Under torchrun: shard the model over the processes (FSDP2) instead of a copy for each (DDP)."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Carry out all runs of an experiment, and report them. Runs that are done already are not trained again.

    Examples:
      rewire sweep demo                                  a few minutes on two cores
      rewire sweep table1 --scale laptop --workers 2 --data-dir data
      rewire sweep table3 --scale paper --device cuda --workers 1
      rewire sweep evidence --scale workstation --dry-run --measure
      rewire sweep exp.py:compare --seeds 5 --epochs 20 --set width=0.5 --dry-run
      rewire sweep table1 --scale paper --device cuda --engine ray --address auto --out /shared/table1

    """

    name: Positional[str]
    """The experiment: a name that `rewire experiments` shows, or a function that returns runs (file.py:function)."""
    scale: Literal["demo", "laptop", "workstation", "paper"] | None = None
    """The size of an experiment of the library: minutes on digits (demo, the default), hours (laptop) or about
    a day of one core (workstation) on CIFAR-100, or as published."""
    seeds: int | None = None
    """Carry out every configuration with the seeds 0 to SEEDS - 1."""
    epochs: int | None = None
    """The number of epochs of every run."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Change a setting of every run, as in --set width=0.5. May be repeated."""
    dry_run: bool = False
    """List the runs, and neither train nor write anything."""
    measure: bool = False
    """With --dry-run: time a few optimizer steps of each kind of run, and print the seconds of each run and of all."""
    workers: int = 2
    """How many runs to carry out at once; a Ray cluster carries out as many as fit."""
    engine: Literal["local", "ray"] = "local"
    """Carry out the runs in processes of this machine (local), or on Ray (ray)."""
    address: str | None = None
    """The address of a Ray cluster (auto: the cluster of this machine); by default Ray is started on this machine."""
    cpus: float = 1
    """With Ray: processors for each run."""
    gpus: float | None = None
    """With Ray: GPUs for each run, a fraction allowed; by default one where the device is cuda."""
    device: str = "cpu"
    """The device to train on."""
    data_dir: Path | None = None
    """The folder with the extracted archives of the data set."""
    out: Path | None = None
    """The folder for the results; by default runs/NAME-SCALE."""
    skip: Path | None = None
    """Leave out the runs that are finished in this folder, or in this file that `rewire collect` wrote."""
    store: str | None = None
    """How weights are stored in every run: masked (dense tensor and mask) or packed (non-zeros only); by default as the
    experiment says."""
    tensorboard: bool = False
    """Also write curves for TensorBoard."""
    film: bool = False
    """Also record every rewiring of every run, for `rewire watch`."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """List the data sets, or download one from its publisher.

    Examples:
      rewire data list
      rewire data fetch cifar100

    """

    action: Positional[Literal["list", "fetch"]]
    """What to do."""
    name: Positional[str | None] = None
    """The data set to download."""


@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the methods, each with the parts that it is composed of.

    Examples:
      rewire methods

    """


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the networks.

    Examples:
      rewire models

    """


@dataclass(frozen=True, kw_only=True)
class Experiments:
    """List the experiments.

    Examples:
      rewire experiments

    """


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Watch networks rewire themselves: a page on this machine that follows films as they are recorded.

    Examples:
      rewire watch runs/a                                the page, while a run with --film trains or afterwards
      rewire watch runs                                  choose among all films below a folder, two side by side
      rewire watch runs/a --save film.html               one file that needs nothing but a browser

    """

    target: Positional[Path]
    """A run, a folder of runs, or a film."""
    save: Path | None = None
    """Write the page with the films inside to this .html file instead."""
    port: int = 8420
    """The first port to try."""


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Show the layers of a network: densities, empty neurons, multiply-adds, positions explored.

    Examples:
      rewire inspect runs/train/NAME
      rewire inspect runs/train/NAME --against runs/train/OTHER
      rewire inspect runs/train/NAME --json > network.json
      rewire inspect runs/train/NAME --pictures pictures

    """

    network: NetworkPath
    """The folder of a run, or its checkpoint."""
    against: Path | None = None
    """Another run or checkpoint, to show how much of its topology is the same."""
    json: bool = False
    """Print JSON instead of a table."""
    pictures: Path | None = None
    """Also draw layer densities, masks with neuron histograms and density over time into this folder."""


@dataclass(frozen=True, kw_only=True)
class Shrink:
    """Remove empty neurons and unused inputs, exactly, and write the smaller network.

    Examples:
      rewire shrink runs/train/NAME -o small.safetensors
      rewire shrink runs/train/NAME -o small.pt --packed

    """

    network: NetworkPath
    """The folder of a run, or its checkpoint."""
    out: OutputFile
    """The file to write: .safetensors (rewire.load_sparse reads it), or .pt for torch.load(weights_only=True)."""
    packed: bool = False
    """Check the packed network as well, and write only the weights that exist into a .pt (a .safetensors has no
    others)."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a network for other tools, read the file back, and check that it is the same network.

    Examples:
      rewire export runs/train/NAME --to safetensors -o network.safetensors
      rewire export runs/train/NAME --to csr -o network.npz
      rewire export runs/train/NAME --to onnx --shrink -o network.onnx

    """

    network: NetworkPath
    """The folder of a run, or its checkpoint."""
    to: Literal["dense", "csr", "safetensors", "onnx"]
    """The format: dense (.safetensors with all weights), safetensors (weights that exist), csr (.npz with matrices for
    SciPy and torch) or onnx."""
    out: OutputFile
    """The file to write."""
    shrink: bool = False
    """Remove empty neurons and unused inputs first."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure the latency of a finished run on the CPU: dense, shrunk and packed, at several batch sizes.

    Examples:
      rewire bench runs/train/NAME
      rewire bench runs/train/NAME --batches 1 256 --threads 1

    """

    network: NetworkPath
    """The folder of a run, or its checkpoint."""
    batches: tuple[int, ...] = (1, 4, 16, 64)
    """The batch sizes."""
    threads: int | None = None
    """The number of threads; by default all processors."""
    seconds: float = 1.0
    """How long to measure each network at each batch size."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check the installation: versions, the native kernels, optional packages, and how to get what is missing.

    The exit code is 1 if there is a problem; optional packages that are missing are none.

    Examples:
      rewire doctor
      rewire doctor --json

    """

    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Pack a finished run for inference, check that it computes the same, and measure it against the dense network.

    Examples:
      rewire pack runs/train/NAME

    """

    network: NetworkPath
    """The folder of a run, or its checkpoint."""
