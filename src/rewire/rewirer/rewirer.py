"""``Rewirer``: a method, a store and a seed, driven by the optimizer's own hooks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rewire.core.capture import capture
from rewire.core.layer import Context, Signal
from rewire.core.method import Method, Rewiring, budget, counts, meets_budget, plan_rewiring
from rewire.core.topology import Edit
from rewire.core.views import Captured
from rewire.distributed.dtensor import copy_into
from rewire.distributed.group import Traffic
from rewire.distributed.handshake import Fingerprint, Peers, handshake
from rewire.rewirer.changes import ChangeWatcher
from rewire.rewirer.check import check
from rewire.rewirer.gradients import not_finite, warn_if_silent
from rewire.rewirer.optimizer_steps import OptimizerSteps
from rewire.rewirer.state import (
    FORMAT,
    checksums,
    compare_masks,
    history_from,
    history_state,
    newborns_from,
    refuse_other,
)
from rewire.rewirer.step_counter import StepCounter
from rewire.rewirer.table import table
from rewire.stores.averages import register_average
from rewire.stores.optimizer.newborns import Newborns
from rewire.stores.optimizer.optimizers import Given, Optimizers, found_inf
from rewire.stores.protocol import Store, StoredLayer


class Rewirer:
    """Keeps a model sparse while its optimizer trains it, and rewires it when the method's schedule says so.

    Built by ``rewire.sparsify``. Works through hooks: the training loop stays as it was.
    """

    def __init__(
        self,
        model: nn.Module,
        store: Store,
        method: Method,
        seed: int,
        left_out: dict[str, str],
        on_rewire: Callable[[Rewiring], None] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.model, self.store, self.method, self.seed = model, store, method, seed
        self.left_out = left_out  # weights that are not sparse, with the reason
        self.on_rewire = on_rewire
        self._listeners: list[Callable[[Rewiring, Sequence[Edit]], None]] = []
        self.history: list[Rewiring] = []
        self.memory: dict[str, Any] = {}
        self.peers = Peers() if peers is None else peers  # the other ranks, if any are known yet
        self.expected: list[int] | None = None  # checksums that the masks must have at the next step, after loading
        self.check_signal = False  # whether to look for a network without any gradient at the next step
        self.due: int | None = None  # a rewiring that was scheduled for this step and has not happened yet
        self.removed = False  # whether it was detached, and the model is a plain one again
        self._counter = StepCounter()
        self._newborns = Newborns()
        self._watcher = ChangeWatcher(model, store.layers, left_out)
        self._captured: list[Captured] | None = None
        self._skips = False  # whether the step under way could rewire, but a GradScaler skips it
        self._ranks_agree = self.peers.exist  # whether the other ranks were looked for, and agree
        self._budget: int | None = self.nnz  # the number of weights since the last rewiring, as far as it is known
        if Signal.MOMENTUM in method.signals:
            store.track_momentum(method.momentum_decay)
        self._steps = OptimizerSteps(store, self._before_step, self._after_step, self._look_ahead)
        self._look_ahead()

    # What users ask about.

    @property
    def layers(self) -> Sequence[StoredLayer]:
        """The sparse layers, in the order of the model."""
        return self.store.layers

    @property
    def nnz(self) -> int:
        """How many weights the sparse layers have."""
        return sum(layer.nnz for layer in self.layers)

    @property
    def density(self) -> float:
        """The share of the sparse layers' weights that exist."""
        return self.nnz / sum(layer.shape.numel() for layer in self.layers)

    @property
    def overall_density(self) -> float:
        """The share of all parameters of the model that exist: those outside the sparse layers are dense."""
        total, other = sum(layer.shape.numel() for layer in self.layers), self._other_parameters()
        return (self.nnz + other) / (total + other)

    def _other_parameters(self) -> int:
        """How many parameters the model has besides the sparse layers."""
        sparse = {id(layer.parameter) for layer in self.layers}
        return sum(parameter.numel() for parameter in self.model.parameters() if id(parameter) not in sparse)

    @property
    def step(self) -> int:
        """How many optimizer steps were completed; a skipped step is not counted."""
        return self._counter.settle()

    @property
    def traffic(self) -> Traffic:
        """How many collectives rewirings have called so far, and the bytes that this process sent in them."""
        return self.peers.traffic

    def __deepcopy__(self, memo: object) -> "Rewirer":
        raise TypeError(
            "a Rewirer cannot be copied: its hooks sit on one model and one optimizer. Build a second model and "
            "optimizer, sparsify them and load the three state_dicts"
        )

    def __repr__(self) -> str:
        if self.removed:
            return "Rewirer (removed)"
        return table(self.store, self.method, self.step, self.left_out, self._other_parameters())

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not in the model's and the optimizer's own state, readable with ``weights_only=True``.

        If the model is sharded, all ranks must call it.
        """
        return {
            "format": FORMAT,
            "method": repr(self.method),
            "store": self.store.name,
            "seed": self.seed,
            "layers": {layer.name: list(layer.shape) for layer in self.layers},
            "masks": checksums(self.layers, self.store.ranks),
            "step": self.step,
            "due": self.due,
            "newborns": [layer.name for layer in self.layers if layer.name in self._newborns.waiting],
            "memory": dict(self.memory),
            "averages": {layer.name: layer.average.clone() for layer in self.layers if layer.average is not None},
            "history": history_state(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken. Load the model's and the optimizer's states too, in any order.

        The state of another model, method or store is refused and changes nothing.
        """
        refuse_other(state, self.method, self.store, self.layers)
        for layer in self.layers:
            if layer.average is not None:
                copy_into(layer.average, state["averages"][layer.name], layer.span)
        self.seed, self.memory, self.due = state["seed"], dict(state["memory"]), state["due"]
        self.history = history_from(state["history"])
        self._newborns.waiting = newborns_from(state)
        self.expected, self.check_signal = list(state["masks"]), False
        self._counter.reset(state["step"])
        self._ranks_agree, self._budget = False, None
        self.store.recount()
        self._look_ahead()

    def listen(self, listener: Callable[[Rewiring, Sequence[Edit]], None]) -> Callable[[], None]:
        """Call ``listener(record, edits)`` after each rewiring; call what is returned to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def follow(self, optimizer: Given) -> None:
        """Go on with another optimizer of the same parameters, or with several.

        A trainer may make its own, or one for each training.
        """
        self._counter.settle()
        self.store.follow(Optimizers(optimizer))
        self._steps.remove()
        self._steps = OptimizerSteps(
            self.store, self._before_step, self._after_step, self._look_ahead, self._steps.followed
        )

    def register_average(self, *averages: object) -> None:
        """Let averages of the model's weights (EMA, SWA, a mean teacher) follow its rewirings.

        An average is a copy of the model made after ``sparsify``, an object that holds one as ``.module``, or a
        dictionary or list of tensors for its parameters. From now on dropped weights leave the average too, and a grown
        one begins there with the value that it is born with: both always have the same topology.
        ``torch.optim.swa_utils.AveragedModel`` is recognised by itself.
        """
        for average in averages:
            register_average(self.model, [layer.link for layer in self.layers], average)

    def check(self) -> None:
        """Verify topology, weights, gradients, optimizer state and averages; raise an error that lists all faults.

        Waits for the device. If there are several ranks, all of them must call it.
        """
        check(self.store, self.peers, self.model, self._budget, self.method.constraint)

    def remove(self) -> None:
        """Detach everything; what is left is a plain model with zeros in place."""
        if not self.removed:
            for layer in self.layers:
                layer.link.weight.refuse_replaced(layer.name)
            self.removed = True
            self._steps.remove()
            self.store.remove()

    # What happens at an optimizer step.

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, first: bool) -> None:
        """Called by the hook of an optimizer whose gradients are complete."""
        self._counter.note_skipped(optimizer, first)
        if first:
            self._captured = None
            self._before_first(optimizer)
        else:
            self.store.clear_inactive_grads()
            if self._captured is not None and found_inf(optimizer):
                self._captured = None  # this optimizer skips the step, so the rewiring waits
        self._newborns.start(self.store.optimizers, optimizer, self.layers, self.store.ranks)

    def _before_first(self, optimizer: torch.optim.Optimizer) -> None:
        """Take what the rewiring will need, then leave only the active gradients to the optimizers."""
        if not self._ranks_agree:
            self._ranks_agree = True
            self.peers = handshake(self.peers, self.model, self.layers, self._fingerprint())
        self.store.refresh()
        self._check_after_loading()
        if self.check_signal:
            self.check_signal = False
            warn_if_silent(self.layers, self.store.ranks)
        self._skips = False
        if self._is_due(self._counter.at_most + 1):
            due, self._skips = self._is_due(self._counter.settle() + 1), found_inf(optimizer)
            if due and not self._skips and self._finite():
                self._watcher.look()
                self._captured = capture(self.method, self.layers, self._context(due))
        self._newborns.waiting |= self.store.before_step()
        reads_gradients = self._captured is not None and Signal.GRAD in self.method.signals
        ranked = reads_gradients or Signal.MOMENTUM in self.method.ranks
        self._steps.cycle.remember(optimizer, self.layers, ranked)

    @torch.no_grad()
    def _after_step(self, last: bool) -> None:
        """Called by the hook of an optimizer; ``last``: every optimizer has stepped."""
        self.store.after_step(may_wait=self._captured is not None)
        if last:
            self._counter.advance()
            due = self._is_due(self._counter.at_most)
            captured, self._captured = self._captured, None
            if due and captured is not None:
                self._rewire(captured, due)
            elif not self._skips:
                self.due = due
        self._look_ahead()

    def _rewire(self, captured: list[Captured], due: int) -> None:
        edits = plan_rewiring(self.method, captured, self._context(due))
        assert edits is not None
        self.due = None
        step, fraction = self._counter.at_most, float(self.method.schedule(due) or 0.0)
        record = Rewiring(step, fraction, *counts(edits, self.store.ranks))
        if not any(record.dropped) and not any(record.grown):
            return
        self.store.apply(edits)
        self._newborns.add(self.layers, record.grown)
        assert meets_budget(self.method, self.layers, due) or any(layer.frozen for layer in self.layers), (
            f"{self.nnz} weights instead of {budget(self.method, self.layers, due)}"
        )
        self._budget = self.nnz
        if self.peers.copies:
            names = [layer.name for layer in self.layers]
            self.peers.verify_topology(step, names, checksums(self.layers, self.store.ranks))
        self.history.append(record)
        if self.on_rewire is not None:
            self.on_rewire(record)
        for listener in list(self._listeners):
            listener(record, edits)

    def _context(self, step: int) -> Context:
        return Context(step=step, seed=self.seed, memory=self.memory, ranks=self.store.ranks)

    def _fingerprint(self) -> Fingerprint:
        return Fingerprint.of(self.method, self.seed, self.store, self.layers, self._counter.at_most)

    def _is_due(self, step: int) -> int | None:
        """The scheduled step that a rewiring at this step carries out, if any."""
        return self.due if self.method.schedule(step) is None else step

    def _look_ahead(self) -> None:
        """Gradients of inactive weights are cleared as they are accumulated, unless the next step ranks them."""
        ranked = self.method.ranks
        coming = self._is_due(self._counter.at_most + 1) is not None
        self.store.keep_inactive_grads = Signal.MOMENTUM in ranked or (coming and Signal.GRAD in ranked)

    def _finite(self) -> bool:
        """Whether all gradients are finite; if not, the rewiring is put off until the next step."""
        self.store.settle_gradients()
        bad = not_finite(self.layers, self.store.ranks)
        if bad:
            self._watcher.warn_once(
                f"not finite at {self._counter.at_most}",
                f"the gradient of {', '.join(bad)} is not finite: rewiring is put off until it is",
            )
        return not bad

    def _check_after_loading(self) -> None:
        if self.expected is not None:
            compare_masks(self.layers, self.expected, self.store.ranks)
            self.expected, self._budget = None, self.nnz
