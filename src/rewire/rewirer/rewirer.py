"""The stateful part, thin: a method, a store, a seed and a memory, driven by the optimizer's own hooks."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from rewire.core.layer import Context, Signal
from rewire.core.method import Method, Rewiring, budget, capture, counts, plan_rewiring
from rewire.core.ranks import total
from rewire.core.views import Captured
from rewire.distributed.dtensor import copy_into, is_sharded
from rewire.distributed.group import Traffic
from rewire.distributed.handshake import Introduction, Peers, meet
from rewire.model.reachability import REMEDY
from rewire.model.select import conv_and_linear
from rewire.rewirer.state import (
    FORMAT,
    checksums,
    compare_masks,
    history_from,
    history_state,
    is_rehearsal,
    refuse_other,
)
from rewire.rewirer.table import table
from rewire.stores.optimizer_state import inner
from rewire.stores.protocol import Store, StoredLayer, all_silent


class Rewirer:
    """Keeps a model sparse while its optimizer trains it, and rewires it when the method's schedule says so.

    Made by ``rewire.sparsify``. Works through hooks: the training loop stays as it was.
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
        self.left_out = left_out  # Conv and Linear weights that are not sparse, with the reason
        self.on_rewire = on_rewire
        self.history: list[Rewiring] = []
        self.memory: dict[str, Any] = {}
        self.peers = Peers() if peers is None else peers  # the other ranks, if any are known yet
        self.expected: list[int] | None = None  # checksums that the masks must have at the next step, after loading
        self.check_signal = False  # whether to look for a network without any gradient at the next step
        self.due: int | None = None  # a rewiring that was scheduled for this step and has not happened yet
        self._steps = 0  # completed, or more by those in _skipped
        self._skipped: torch.Tensor | None = None  # steps that a fused optimizer skipped on the device, not yet counted
        self._views: list[Captured] | None = None
        self._rehearsal = False  # whether the step under way is none of the training
        self._told: set[str] = set()
        self._met = self.peers.others  # whether the other ranks were looked for, and agree
        if Signal.MOMENTUM in method.signals:
            store.track_momentum()
        self.removed = False  # whether it was detached, and the model is a plain one again
        self._hooks: list[RemovableHandle] = []
        self._listen()
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
    def step(self) -> int:
        """How many optimizer steps were completed; a skipped step is not counted."""
        self._settle()
        return self._steps

    @property
    def traffic(self) -> Traffic:
        """How often rewirings met the other ranks so far, and the bytes that this process sent them."""
        return self.peers.traffic

    def __deepcopy__(self, memo: object) -> "Rewirer":
        raise TypeError(
            "a Rewirer cannot be copied: its hooks sit on one model and one optimizer. Build a second model and "
            "optimizer, sparsify them and load the three state_dicts"
        )

    def __repr__(self) -> str:
        if self.removed:
            return "Rewirer (removed)"
        return table(self.store, self.method, self.step, self.left_out)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not in the model's and the optimizer's own state, readable with ``weights_only=True``.

        If the model is sharded, all ranks must ask.
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
            "memory": dict(self.memory),
            "averages": {layer.name: layer.average.clone() for layer in self.layers if layer.average is not None},
            "history": history_state(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken. The model's and the optimizer's states are loaded as ever.

        A state of another model, method or store is refused and changes nothing.
        """
        refuse_other(state, self.method, self.store.name, self.layers)
        for layer in self.layers:
            if layer.average is not None:
                copy_into(layer.average, state["averages"][layer.name], layer.span)
        self.seed, self.memory, self.due = state["seed"], dict(state["memory"]), state["due"]
        self.history = history_from(state["history"])
        self.expected, self.check_signal = list(state["masks"]), False
        self._steps, self._skipped, self._met = state["step"], None, False
        self.store.recount()
        self._look_ahead()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on with another optimizer of the same parameters: a trainer may make its own, or one for each training."""
        self._settle()
        self.store.follow(inner(optimizer))
        for hook in self._hooks:
            hook.remove()
        self._listen()

    def _listen(self) -> None:
        """Be called before and after every step of the optimizer."""
        self._hooks = [
            self.store.optimizer.register_step_pre_hook(self._before_step),
            self.store.optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Detach everything; what is left is a plain model with zeros in place."""
        if not self.removed:
            self.removed = True
            for hook in self._hooks:
                hook.remove()
            self.store.remove()

    # What happens at an optimizer step.

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self._views, self._rehearsal = None, is_rehearsal(optimizer, self.layers, self.store.ranks)
        if self._rehearsal:
            return None
        found_inf = getattr(optimizer, "found_inf", None)  # set by GradScaler for optimizers that skip on the device
        if found_inf is not None:
            now = found_inf.detach().clamp(max=1)
            self._skipped = now if self._skipped is None else self._skipped + now
        # `args` may carry the optimizer itself first; the closure is the other one, or a keyword.
        closures = [a for a in args if callable(a) and a is not optimizer]
        if closures or kwargs.get("closure") is not None:
            wrapped = self._wrap(closures[0] if closures else kwargs["closure"])
            args = tuple(wrapped if a in closures else a for a in args)
            return args, kwargs | ({} if closures else {"closure": wrapped})
        self._gradients_are_ready()
        return None

    def _wrap(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """With a closure the gradients appear inside the step, at the first evaluation the ones to rank."""
        first = True

        def evaluate() -> Any:
            nonlocal first
            loss = closure()
            if first:
                self._gradients_are_ready()
            else:
                self.store.clear()
            first = self.store.keep_inactive = False
            return loss

        return evaluate

    @torch.no_grad()
    def _gradients_are_ready(self) -> None:
        """Take what the rewiring will need, then leave only the active gradients to the optimizer."""
        if not self._met:
            self._met = True
            self.peers = meet(self.peers, self.model, self.layers, self._introduction())
        self.store.refresh()
        self._check_after_loading()
        if self.check_signal:
            self.check_signal = False
            if all_silent(self.layers, self.store.ranks):
                warnings.warn(
                    "the gradient of every sparse weight is exactly zero at the first step: no signal passes through "
                    f"this start, and no method can revive it. {REMEDY}",
                    stacklevel=2,
                )
        if self._is_due(self._steps + 1):
            self._settle()
            due = self._is_due(self._steps + 1)
            if due and self._finite():
                self._notice_changes()
                self._views = capture(self.method, self.layers, self._context(due))
        self.store.before_step()

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._rehearsal:
            return
        self.store.after_step(look=self._views is not None)
        self._steps += 1
        due = self._is_due(self._steps)
        views, self._views = self._views, None
        if due and views is not None:
            self._rewire(views, due)
        else:
            self.due = due
        self._look_ahead()

    def _rewire(self, views: list[Captured], due: int) -> None:
        context = self._context(due)
        edits = plan_rewiring(self.method, views, context)
        assert edits is not None
        self.due = None
        fraction = self.method.schedule(due) or 0.0
        record = Rewiring(self._steps, fraction, *counts(edits, self.store.ranks))
        if not any(record.dropped) and not any(record.grown):
            return
        self.store.apply(edits)
        target = budget(self.method, self.layers, due)
        assert self.nnz == target or any(layer.frozen for layer in self.layers), (
            f"{self.nnz} weights instead of {target}"
        )
        if self.peers.copies:
            names = [layer.name for layer in self.layers]
            self.peers.compare(self._steps, names, checksums(self.layers, self.store.ranks))
        self.history.append(record)
        if self.on_rewire is not None:
            self.on_rewire(record)

    def _context(self, step: int) -> Context:
        return Context(step=step, seed=self.seed, memory=self.memory, ranks=self.store.ranks)

    def _introduction(self) -> Introduction:
        return Introduction.of(self.method, self.seed, self.store.name, self.layers, self._steps)

    def _is_due(self, step: int) -> int | None:
        """The scheduled step that a rewiring at this step carries out, if any."""
        return self.due if self.method.schedule(step) is None else step

    def _look_ahead(self) -> None:
        """Gradients of inactive weights are cleared as they are accumulated, unless the next step ranks them."""
        ranked = self.method.ranks
        coming = self._is_due(self._steps + 1) is not None
        self.store.keep_inactive = Signal.MOMENTUM in ranked or (coming and Signal.GRAD in ranked)

    def _settle(self) -> None:
        """Ask the device how many steps it skipped. Waits for it, so only where the count matters."""
        if self._skipped is not None:
            self._steps -= int(self._skipped)
            self._skipped = None

    def _finite(self) -> bool:
        """Whether all gradients are finite; if not, the rewiring is put off until the next step."""
        ranks = total(self.store.ranks, (int(not layer.is_finite()) for layer in self.layers))  # that found some
        bad = [layer.name for layer, count in zip(self.layers, ranks, strict=True) if count]
        if bad:
            self._tell(
                f"not finite at {self._steps}",
                f"the gradient of {', '.join(bad)} is not finite: rewiring is put off until it is",
            )
        return not bad

    def _notice_changes(self) -> None:
        """Parameters that were frozen, replaced or added since ``sparsify`` are reported and left alone."""
        for layer in self.layers:
            held = layer.module._parameters.get("weight")  # FSDP puts a gathered weight there while it computes
            replaced = held is not layer.parameter and not is_sharded(layer.parameter)
            layer.frozen = replaced or not layer.parameter.requires_grad
            if layer.frozen:
                how = "replaced" if replaced else "frozen"
                self._tell(layer.name, f"the weight of {layer.name} was {how} after sparsify: it is no longer rewired")
        known = {id(layer.parameter) for layer in self.layers}
        names = {*self.left_out, *self._told, *(layer.name for layer in self.layers if is_sharded(layer.parameter))}
        for name, module in conv_and_linear(self.model):
            weight = module._parameters.get("weight")
            if weight is not None and id(weight) not in known and name not in names:
                self._tell(name, f"{name} was added after sparsify: it stays dense and outside the budget")

    def _tell(self, key: str, sentence: str) -> None:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(sentence, stacklevel=2)

    def _check_after_loading(self) -> None:
        if self.expected is not None:
            compare_masks(self.layers, self.expected, self.store.ranks)
            self.expected = None
