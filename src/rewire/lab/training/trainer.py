"""The objects of one training: data, network, optimizer and rewirer, and how they are saved and loaded."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire.analysis.overlap import Exploration
from rewire.attach import STORES, sparsify
from rewire.distributed.dtensor import whole
from rewire.lab.data.augment import batches, plain_batches, steps_per_epoch
from rewire.lab.data.datasets import load
from rewire.lab.data.source import Dataset
from rewire.lab.models.build import build
from rewire.lab.run import Run
from rewire.lab.training.fsdp import gather_tensors, load_model, load_optimizer, merge_masks
from rewire.lab.training.ranks import RankGroup
from rewire.lab.training.recipe import learning_rate, method_of, optimizer_of
from rewire.model.select import find_layers
from rewire.rewirer.rewirer import Rewirer

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Place:
    """Where a run is carried out: nothing here changes its numbers."""

    device: str = "cpu"
    data_dir: Path | None = None
    tensorboard: bool = False
    ranks: RankGroup = field(default_factory=RankGroup)
    film: bool = False


def describe(data: Dataset) -> dict[str, Any]:
    """What a network has to know about its data: the checkpoint holds it, so that the data set need not be at hand."""
    about = {"classes": data.classes, "image": list(data.image), "train": len(data.train_labels)}
    scale = 255 if data.train_images.dtype == torch.uint8 else 1
    return about | {"mean": list(data.mean), "std": list(data.std), "scale": scale}


class Trainer:
    """The objects of one training, and how they are saved and loaded."""

    def __init__(self, run: Run, place: Place) -> None:
        self.run, self.place, self.ranks = run, place, place.ranks
        if self.ranks.size > 1 and not run.is_dense and not STORES[run.store].spans_ranks:
            able = " or ".join(name for name, store in STORES.items() if store.spans_ranks)
            raise ValueError(
                f"the {run.store} store cannot be shared by several ranks: use --store {able}, or one process"
            )
        self.data: Dataset = load(run.data, data_dir=place.data_dir, limit=run.limit, code=run.code_of("data"))
        self.device = torch.device(place.device)
        model = build(
            run.model,
            classes=self.data.classes,
            image=self.data.image,
            width=run.width,
            seed=run.seed,
            code=run.code_of("model"),
        )
        self.dtype = torch.float64 if run.precision == "float64" else torch.float32
        self.model: nn.Module = self.ranks.prepare(model.to(self.device, self.dtype))
        self.optimizer = optimizer_of(run, self.model.parameters())
        self.steps = steps_per_epoch(len(self.data.train_labels), run.batch_size)
        self.rewirer: Rewirer | None = None
        self.exploration: Exploration | None = None
        if not run.is_dense:
            method = method_of(run, self.steps)
            self.rewirer = sparsify(self.model, self.optimizer, method, store=run.store, init=run.init, seed=run.seed)
            self.exploration = Exploration(self.rewirer.layers)
            self.rewirer.on_rewire = lambda _: self.exploration.add() if self.exploration is not None else None
        self.parallel_model = self.ranks.wrap(self.model)
        self.metrics: list[dict[str, Any]] = []
        self.losses: list[float] = []  # of the steps of the last epoch, if the run records them
        self.initial = self.nnz()

    def nnz(self) -> dict[str, int]:
        """Active weights of every layer."""
        if self.rewirer is not None:
            return {layer.name: layer.nnz for layer in self.rewirer.layers}
        return {layer.spec.name: layer.spec.numel for layer in find_layers(self.model)[0]}

    def explored(self) -> dict[str, int]:
        """How many positions of every layer were ever active; empty if an early version of the run did not count."""
        if self.rewirer is None:
            return self.nnz()
        return {} if (seen := self.explored_on_all_ranks()) is None else seen.positions

    def explored_on_all_ranks(self) -> Exploration | None:
        """The positions that were ever active on any rank. All ranks must call this."""
        if self.exploration is not None and self.ranks.fsdp:
            merge_masks(self.exploration.ever)
        return self.exploration

    def masks(self) -> dict[str, Tensor]:
        """The mask of every layer, as uint8."""
        if self.rewirer is not None:
            return {layer.name: whole(layer.mask).to("cpu", torch.uint8).contiguous() for layer in self.rewirer.layers}
        return {
            layer.spec.name: torch.ones(layer.spec.shape, dtype=torch.uint8) for layer in find_layers(self.model)[0]
        }

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs. All ranks must call this."""
        seen = self.explored_on_all_ranks()
        state = {
            "run": self.run.to_dict(),
            "data": describe(self.data),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rewirer": self.rewirer.state_dict() if self.rewirer is not None else None,
            "explored": seen.state_dict() if seen is not None else None,
            "metrics": self.metrics,
            "initial": self.initial,
        }
        return gather_tensors(state) if self.ranks.fsdp else state

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        if self.ranks.fsdp:
            load_model(self.model, state["model"])
            load_optimizer(self.optimizer, state["optimizer"])
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        if self.rewirer is not None:
            self.rewirer.load_state_dict(state["rewirer"])
        if self.exploration is not None and (seen := state.get("explored")) is not None:
            self.exploration.load_state_dict(seen)
        else:
            self.exploration = None
        self.metrics, self.initial = state["metrics"], state["initial"]

    def autocast(self) -> AbstractContextManager[Any]:
        """bfloat16 where the run asks for it."""
        lower = self.run.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16) if lower else nullcontext()

    def train_epoch(self, epoch: int, report: Report) -> float:
        """One pass over the data; the mean loss."""
        self.model.train()
        losses: list[Tensor] = []
        total, count = torch.zeros((), device=self.device), 0
        epoch_batches = batches(
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
        for index, (x, y) in enumerate(epoch_batches):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.run, epoch * self.steps + index, self.steps)
            mine = self.ranks.part(len(y))
            with self.autocast():
                loss = self.loss(self.parallel_model(x[mine].to(self.dtype)), y[mine], len(y))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.detach() * (len(y) / self.ranks.size)
            count += len(y)
            if self.run.record_losses:
                losses.append(loss.detach())
            report({"kind": "step", "epoch": epoch, "step": index + 1, "steps": self.steps})
        self.losses = self._means_over_ranks(losses) if losses else []
        return float(self.ranks.sum(total)) / count

    def _means_over_ranks(self, losses: Sequence[Tensor]) -> list[float]:
        """The loss of every step over the whole batch, of which each rank has seen a part."""
        means = self.ranks.sum(torch.stack(list(losses))) / self.ranks.size
        return [round(mean, 5) for mean in means.tolist()]

    def loss(self, out: Tensor, y: Tensor, count: int) -> Tensor:
        """The mean over the batch; each rank scales its part so that the mean over ranks equals it."""
        if self.ranks.size == 1:
            return F.cross_entropy(out, y)
        return F.cross_entropy(out, y, reduction="sum") * (self.ranks.size / count)

    @torch.no_grad()
    def accuracy(self) -> tuple[float, float]:
        """The share of labels of the test set that are predicted correctly, and the mean loss."""
        self.model.eval()
        correct, loss = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for x, y in plain_batches(
            self.data.test_images,
            self.data.test_labels,
            size=500,
            mean=self.data.mean,
            std=self.data.std,
            device=self.device,
        ):
            mine = self.ranks.part(len(y))
            x, y = x[mine].to(self.dtype), y[mine]
            with self.autocast():
                out = self.model(x)
            correct += (out.argmax(1) == y).sum()
            loss += F.cross_entropy(out.float(), y, reduction="sum")
        count = self.data.test_labels.numel()
        return float(self.ranks.sum(correct)) / count, float(self.ranks.sum(loss)) / count
