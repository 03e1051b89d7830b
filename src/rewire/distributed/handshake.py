"""The ranks that train one model together: who they are, and whether they agree.

Ranks meet where all of them are sure to come by: in ``sparsify`` or at the first step, and at rewirings. On ordinary
steps nothing is said. If ranks differ, all find it and all raise: nobody waits for a rank that stopped.
"""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rewire.core.layer import LayerSpec
from rewire.core.method import Method
from rewire.core.ranks import ALONE, Ranks
from rewire.distributed.dtensor import is_sharded, sharded_by_rows
from rewire.distributed.group import Group, Traffic
from rewire.distributed.topk import Shards
from rewire.model.state_names import MASK
from rewire.parts.schedule import Never
from rewire.stores.protocol import StoredLayer


@dataclass(frozen=True)
class Introduction:
    """What ranks must agree on before they rewire together."""

    method: str
    moves: bool
    seed: int
    store: str
    layers: dict[str, tuple[int, ...]]
    step: int

    @classmethod
    def of(
        cls, method: Method, seed: int, store: str, specs: Iterable[LayerSpec | StoredLayer], step: int = 0
    ) -> "Introduction":
        """Of this process."""
        moves = not isinstance(method.schedule, Never)
        return cls(repr(method), moves, seed, store, {one.name: tuple(one.shape) for one in specs}, step)


class Peers:
    """Ranks with shards of the layers, ranks with copies of them, both (HSDP) or none."""

    def __init__(self, shards: Shards | None = None, copies: Sequence[Group] = ()) -> None:
        self.shards, self.copies = shards, list(copies)

    @property
    def others(self) -> bool:
        """Whether there are any."""
        return self.shards is not None or bool(self.copies)

    @property
    def ranks(self) -> Ranks:
        """Who holds the layers."""
        return ALONE if self.shards is None else self.shards

    @property
    def traffic(self) -> Traffic:
        """What this process sent to the others so far."""
        groups = [*self.copies, *([] if self.shards is None else [self.shards.group])]
        return sum((group.traffic for group in groups), Traffic())

    def introduce(self, introduction: "Introduction") -> None:
        """Raise on every rank if what they say about themselves differs."""
        said: list[Any] = [asdict(introduction)]
        for group in [*([] if self.shards is None else [self.shards.group]), *self.copies]:
            said = [one for many in group.tell(said) for one in many]
        for what, first in said[0].items():
            other = next((rank for rank, one in enumerate(said) if one[what] != first), None)
            if other is not None:
                raise RuntimeError(
                    f"the ranks do not agree on the {what}: rank 0 has {first}, rank {other} has {said[other][what]}. "
                    "Call sparsify with the same arguments on every rank, and load the same checkpoint"
                )

    def compare(self, step: int, names: Sequence[str], checksums: Sequence[int]) -> None:
        """Raise on every rank, naming the layers, if their copies have different topologies."""
        for group in self.copies:
            said = group.gather([step, *checksums])
            differ = [
                name
                for name, column in zip(["step", *names], zip(*said, strict=True), strict=True)
                if len(set(column)) > 1
            ]
            if differ:
                raise RuntimeError(
                    f"after the rewiring at step {step} the ranks do not have the same {', '.join(differ)}: their "
                    "gradients, weights or checkpoints differed before. Start all of them from one checkpoint"
                )


def peers_of(model: nn.Module, parameters: Sequence[nn.Parameter], names: Sequence[str], search: bool = False) -> Peers:
    """Find the ranks that share these parameters: by their layout, or by a DDP wrapper around them.

    ``search``: look for a wrapper even if the model that is given is none.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Peers()
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "FullyShardedDataParallel flattens weights of several layers into one: use its successor, "
            "torch.distributed.fsdp.fully_shard"
        )
    spread = [name for one, name in zip(parameters, names, strict=True) if is_sharded(one)]
    if spread:
        if len(spread) < len(parameters):
            whole = next(name for name in names if name not in spread)
            raise ValueError(f"{spread[0]} is sharded and {whole} is not: call fully_shard on the whole model too")
        return _sharded(parameters, names)
    given = _ddp(model)
    wrappers = [given] if given is not None else _ddp_around(parameters) if search else []
    for wrapper in wrappers:
        leave_masks_alone(wrapper)
    return Peers(copies=[Group(wrappers[-1].process_group, parameters[0].device)] if wrappers else [])


def _sharded(parameters: Sequence[Any], names: Sequence[str]) -> Peers:
    if parameters[0].is_meta:
        raise ValueError(f"{names[0]} has no memory yet: call model.to_empty and initialise it, then sparsify")
    layouts = [sharded_by_rows(one, name) for one, name in zip(parameters, names, strict=True)]
    mesh, dim = layouts[0]
    other = next((name for name, layout in zip(names, layouts, strict=True) if layout != layouts[0]), None)
    if other is not None:
        raise ValueError(f"{names[0]} and {other} are sharded over different meshes: use one for the whole model")
    device = torch.device(mesh.device_type)
    groups = [Group(mesh.get_group(at), device) for at in range(mesh.ndim)]
    return Peers(Shards(groups[dim]), [group for at, group in enumerate(groups) if at != dim])


def _ddp(model: nn.Module | None) -> DistributedDataParallel | None:
    """The wrapper that was given, perhaps inside a compiled model."""
    while model is not None and not isinstance(model, DistributedDataParallel):
        model = model._modules.get("_orig_mod")
    return model


def _ddp_around(parameters: Iterable[nn.Parameter]) -> list[DistributedDataParallel]:
    """The wrappers that reduce the gradients of these parameters. They keep no list: the garbage collector is asked."""
    ours = {id(one) for one in parameters}
    # issubclass would take many times longer
    wrappers = [one for one in gc.get_objects() if DistributedDataParallel in type(one).__mro__]
    inside = [one.__dict__.get("_modules", {}).get("module") for one in wrappers]  # one may not be complete yet
    return [
        one
        for one, model in zip(wrappers, inside, strict=True)
        if model is not None and any(id(parameter) in ours for parameter in model.parameters())
    ]


def leave_masks_alone(wrapper: DistributedDataParallel) -> None:
    """Masks agree by construction: DDP need not send them before every forward pass. They may not be there yet."""
    wrapper.parameters_to_ignore |= {f"{name}.{MASK}".lstrip(".") for name, _ in wrapper.module.named_modules()}
    wrapper._assign_modules_buffers()


def meet(peers: Peers, model: nn.Module, layers: Sequence[StoredLayer], introduction: Introduction) -> Peers:
    """Before a step: look for ranks that were not known yet, and see whether all agree.

    A model may be wrapped in DDP after ``sparsify``; it must not be sharded after it, for its parameters are replaced.
    """
    for layer in layers:
        if is_sharded(layer.module._parameters.get("weight")) and not is_sharded(layer.parameter):
            raise RuntimeError(
                f"{layer.name} was sharded after sparsify: call fully_shard first, then build the optimizer from "
                "model.parameters(), then sparsify"
            )
    if not peers.others:
        peers = peers_of(model, [layer.parameter for layer in layers], [layer.name for layer in layers], search=True)
    if peers.others:
        if introduction.store == "packed" and introduction.moves:
            refuse_packed()
        peers.introduce(introduction)
    return peers


def refuse_packed() -> NoReturn:
    """Packed weights are resized by a rewiring, and no rank has seen the inputs of the others that it ranks by."""
    raise ValueError(
        "store='packed' does not work with DDP or FSDP: a rewiring resizes the weights, and ranks gradients that no "
        "rank has for the data of all. Use store='masked' (a static packed model may be wrapped in DDP after sparsify)"
    )
