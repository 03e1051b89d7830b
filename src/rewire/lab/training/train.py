"""One training, from a ``Run`` to its folder of results. Interrupted and started again, it goes on bit for bit."""

import shlex
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire.analysis.dead_units import count_units
from rewire.analysis.flops import macs, positions, ranked_steps, training_macs
from rewire.analysis.overlap import Exploration
from rewire.attach import sparsify
from rewire.core.dense_ops import where_true
from rewire.core.method import Method, Rewiring
from rewire.distributed.dtensor import whole
from rewire.lab.data.augment import batches, plain_batches, steps_per_epoch
from rewire.lab.data.datasets import Dataset, load
from rewire.lab.environment import environment
from rewire.lab.models import build
from rewire.lab.results import claim, read_json, write_json, write_metrics
from rewire.lab.run import DENSE, Run
from rewire.lab.training import checkpoints
from rewire.lab.training.fsdp import load_model, load_optimizer, made_whole, unite
from rewire.lab.training.ranks import Team
from rewire.lab.training.recipe import learning_rate, method_of
from rewire.lab.training.tensorboard import Board
from rewire.model.select import find_layers
from rewire.rewirer.rewirer import Rewirer

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Place:
    """Where a run is carried out: nothing here changes its numbers."""

    device: str = "cpu"
    data_dir: Path | None = None
    tensorboard: bool = False
    team: Team = field(default_factory=Team)


class Trainer:
    """The objects of one training, and how they are saved and loaded."""

    def __init__(self, run: Run, place: Place) -> None:
        self.run, self.place, self.team = run, place, place.team
        if self.team.size > 1 and run.store == "packed":
            raise ValueError("the packed store cannot be shared by several ranks: use --store masked, or one process")
        self.data: Dataset = load(run.data, data_dir=place.data_dir, limit=run.limit)
        self.device = torch.device(place.device)
        model = build(run.model, classes=self.data.classes, image=self.data.image, width=run.width, seed=run.seed)
        self.dtype = torch.float64 if run.precision == "float64" else torch.float32
        self.model: nn.Module = self.team.prepare(model.to(self.device, self.dtype))
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=run.lr, momentum=run.momentum, weight_decay=run.weight_decay
        )
        self.steps = steps_per_epoch(len(self.data.train_labels), run.batch_size)
        self.rewirer: Rewirer | None = None
        self.seen: Exploration | None = None
        if run.method != DENSE:
            method = method_of(run, self.steps)
            self.rewirer = sparsify(self.model, self.optimizer, method, store=run.store, init=run.init, seed=run.seed)
            self.seen = Exploration(self.rewirer.layers)
            self.rewirer.on_rewire = lambda _: self.seen.add() if self.seen is not None else None
        self.shared = self.team.share(self.model)
        self.metrics: list[dict[str, Any]] = []
        self.initial = self.nnz()

    def nnz(self) -> dict[str, int]:
        """Active weights of every layer."""
        if self.rewirer is not None:
            return {layer.name: layer.nnz for layer in self.rewirer.layers}
        return {one.spec.name: one.spec.numel for one in find_layers(self.model)[0]}

    def explored(self) -> dict[str, int]:
        """How many positions of every layer were ever active; nothing if an early version of the run did not count."""
        if self.rewirer is None:
            return self.nnz()
        return {} if (seen := self.seen_by_all()) is None else seen.positions

    def seen_by_all(self) -> Exploration | None:
        """What was ever active on any rank. All of them must ask."""
        if self.seen is not None and self.team.fsdp:
            unite(self.seen.ever)
        return self.seen

    def masks(self) -> dict[str, Tensor]:
        """Which weights of every layer exist, as bytes."""
        if self.rewirer is not None:
            return {layer.name: whole(layer.mask).to("cpu", torch.uint8).contiguous() for layer in self.rewirer.layers}
        return {one.spec.name: torch.ones(one.spec.shape, dtype=torch.uint8) for one in find_layers(self.model)[0]}

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs. All ranks must ask."""
        seen = self.seen_by_all()
        state = {
            "run": self.run.to_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rewirer": self.rewirer.state_dict() if self.rewirer is not None else None,
            "explored": seen.state_dict() if seen is not None else None,
            "metrics": self.metrics,
            "initial": self.initial,
        }
        return made_whole(state) if self.team.fsdp else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self.team.fsdp:
            load_model(self.model, state["model"])
            load_optimizer(self.optimizer, state["optimizer"])
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        if self.rewirer is not None:
            self.rewirer.load_state_dict(state["rewirer"])
        if self.seen is not None and (seen := state.get("explored")) is not None:
            self.seen.load_state_dict(seen)
        else:
            self.seen = None
        self.metrics, self.initial = state["metrics"], state["initial"]

    def autocast(self) -> AbstractContextManager[Any]:
        """bfloat16 where the run asks for it."""
        lower = self.run.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16) if lower else nullcontext()

    def train_epoch(self, epoch: int, report: Report) -> float:
        """One pass over the data; the mean loss."""
        self.model.train()
        total, seen = torch.zeros((), device=self.device), 0
        feed = batches(
            self.data.train_images,
            self.data.train_labels,
            size=self.run.batch_size,
            seed=self.run.seed,
            epoch=epoch,
            mean=self.data.mean,
            std=self.data.std,
            augment=self.data.augment,
            device=self.device,
        )
        for index, (x, y) in enumerate(feed):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.run, epoch * self.steps + index, self.steps)
            mine = self.team.part(len(y))
            with self.autocast():
                loss = self.loss(self.shared(x[mine].to(self.dtype)), y[mine], len(y))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.detach() * (len(y) / self.team.size)
            seen += len(y)
            report({"kind": "step", "epoch": epoch, "step": index + 1, "steps": self.steps})
        return float(self.team.add(total)) / seen

    def loss(self, out: Tensor, y: Tensor, count: int) -> Tensor:
        """The mean over the batch; of a rank's part of it, so that the mean over the ranks is the one of the batch."""
        if self.team.size == 1:
            return F.cross_entropy(out, y)
        return F.cross_entropy(out, y, reduction="sum") * (self.team.size / count)

    @torch.no_grad()
    def accuracy(self) -> tuple[float, float]:
        """Share of the test images that are classified rightly, and the mean loss."""
        self.model.eval()
        hits, loss = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for x, y in plain_batches(
            self.data.test_images,
            self.data.test_labels,
            size=500,
            mean=self.data.mean,
            std=self.data.std,
            device=self.device,
        ):
            mine = self.team.part(len(y))
            x, y = x[mine].to(self.dtype), y[mine]
            with self.autocast():
                out = self.model(x)
            hits += (out.argmax(1) == y).sum()
            loss += F.cross_entropy(out.float(), y, reduction="sum")
        count = len(self.data.test_labels)
        return float(self.team.add(hits)) / count, float(self.team.add(loss)) / count


def train(run: Run, folder: Path, place: Place | None = None, report: Report = lambda event: None) -> dict[str, Any]:
    """Carry out a run, or the rest of it, and return its result. A finished run is not repeated."""
    place = place or Place()
    team, known = place.team, folder / "result.json"
    with ExitStack() as stack:
        team.once(lambda: stack.enter_context(claim(folder)))
        if (result := team.once(lambda: read_json(known) if known.exists() else None)) is not None:
            return result
        if team.first:
            about = {"run": run.to_dict(), "id": run.id, "environment": environment(place.device, team.size)}
            write_json(folder / "run.json", about)
            (folder / "error.json").unlink(missing_ok=True)
        try:
            return _train(run, folder, place, report)
        except Exception:
            if team.first:
                write_json(folder / "error.json", {"traceback": traceback.format_exc()})
            raise


def _train(run: Run, folder: Path, place: Place, report: Report) -> dict[str, Any]:
    team, trainer = place.team, Trainer(run, place)
    checkpoint = folder / "checkpoint.safetensors"
    if (state := team.once(lambda: checkpoints.load(checkpoint) if checkpoint.exists() else None)) is not None:
        trainer.load_state(state)
    log = Board(folder / "tensorboard", len(trainer.metrics)) if place.tensorboard and team.first else None
    for epoch in range(len(trainer.metrics), run.epochs):
        began = time.perf_counter()
        loss = trainer.train_epoch(epoch, report)
        accuracy, test_loss = trainer.accuracy()
        line = {
            "epoch": epoch + 1,
            "loss": loss,
            "accuracy": accuracy,
            "test_loss": test_loss,
            "lr": trainer.optimizer.param_groups[0]["lr"],
            "seconds": time.perf_counter() - began,
            "nnz": list(trainer.nnz().values()),
        }
        trainer.metrics.append(line)
        team.once(partial(_save, folder, trainer.state()))
        if log is not None:
            log.add(line, list(trainer.nnz()), [one.spec.numel for one in find_layers(trainer.model)[0]])
        report({"kind": "epoch", **line})
    result, masks = outcome(trainer, place), trainer.masks()
    team.once(lambda: checkpoints.save_tensors(folder / "topology.safetensors", masks))
    team.once(lambda: write_json(folder / "result.json", result))
    return result


def _save(folder: Path, state: dict[str, Any]) -> None:
    checkpoints.save(folder / "checkpoint.safetensors", state)
    write_metrics(folder, state["metrics"])


def training_flops(
    initial: Mapping[str, int],
    sizes: Mapping[str, int],
    applied: Mapping[str, int],
    history: Sequence[Rewiring],
    steps: int,
    method: Method | None,
) -> dict[str, float]:
    """What the whole training cost, per image of a batch, and against a dense one of as many steps."""
    ranked = ranked_steps(method, steps) if method is not None else ()
    cost, dense = training_macs(initial, sizes, applied, history, steps, ranked), 3 * steps * macs(sizes, applied)
    return {"training": cost, "training_dense": dense, "training_ratio": cost / dense}


def outcome(trainer: Trainer, place: Place) -> dict[str, Any]:
    """What ``result.json`` holds."""
    nnz, explored, last = trainer.nnz(), trainer.explored(), trainer.metrics[-1]
    specs = {one.spec.name: one.spec for one in find_layers(trainer.model)[0]}
    used = {name: count_units(specs[name], where_true(mask.bool())) for name, mask in trainer.masks().items()}
    example = torch.zeros(1, *trainer.data.image, device=trainer.device, dtype=trainer.dtype)
    applied = positions(trainer.model, example)
    sizes = {name: spec.numel for name, spec in specs.items()}
    sparse, dense = macs(nnz, applied), macs(sizes, applied)
    history = trainer.rewirer.history if trainer.rewirer is not None else []
    method = trainer.rewirer.method if trainer.rewirer is not None else None
    return {
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "classes": trainer.data.classes,
        "nnz": sum(nnz.values()),
        "weights": sum(sizes.values()),
        "density": sum(nnz.values()) / sum(sizes.values()),
        "explored": sum(explored.values()) or None,
        "layers": [
            {"name": name, "shape": list(specs[name].shape), "nnz": nnz[name], "initial_nnz": trainer.initial[name]}
            | {"explored": explored.get(name)}
            | asdict(used[name])
            for name in nnz
        ],
        "flops": {"inference": sparse, "dense": dense, "ratio": sparse / dense}
        | training_flops(trainer.initial, sizes, applied, history, len(trainer.metrics) * trainer.steps, method),
        "rewirings": [asdict(one) for one in history],
        "steps_per_epoch": trainer.steps,
        "seconds": sum(line["seconds"] for line in trainer.metrics),
        "environment": environment(place.device, place.team.size),
        "command": shlex.join(["rewire", "train", *trainer.run.arguments()]),
    }
