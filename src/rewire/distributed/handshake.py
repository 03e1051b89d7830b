"""The ranks that train one model together: find them, and verify that they agree.

Ranks communicate only where all of them are sure to arrive: in ``sparsify`` or at the first step, and at rewirings and
the steps right after them.
Ordinary steps call no collective. If ranks differ, all of them notice and all raise, so that none waits for another.
"""

import gc
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rewire._torch import ignore_buffers, ignore_in_ddp, inside_compiled, parameters_of, wrapped_by_ddp
from rewire.core.method import Method
from rewire.core.ranks import ALONE, Ranks
from rewire.distributed.dtensor import is_sharded, sharded_by_rows
from rewire.distributed.group import Group, Traffic
from rewire.distributed.topk import Shards
from rewire.model.state_names import POSITIONS, mask_name


class NamedShape(Protocol):
    """A layer, stored or not: its name and its shape."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> torch.Size: ...


class Storage(Protocol):
    """What ranks want to know of a store: see ``stores.protocol``."""

    @property
    def name(self) -> str: ...
    @property
    def spans_ranks(self) -> bool: ...


@dataclass(frozen=True)
class Fingerprint:
    """What ranks must agree on before they rewire together."""

    method: str
    rewires: bool
    seed: int
    store: str
    spans_ranks: bool
    layers: dict[str, tuple[int, ...]]
    step: int

    @classmethod
    def of(
        cls, method: Method, seed: int, store: "Storage | type[Any]", specs: Iterable[NamedShape], step: int = 0
    ) -> "Fingerprint":
        """Of this process."""
        shapes = {spec.name: tuple(spec.shape) for spec in specs}
        return cls(repr(method), method.rewires, seed, store.name, store.spans_ranks, shapes, step)


class Peers:
    """Ranks with shards of the layers, ranks with copies of them, both (HSDP) or none."""

    def __init__(self, shards: Shards | None = None, copies: Sequence[Group] = ()) -> None:
        self.shards, self.copies = shards, list(copies)

    @property
    def exist(self) -> bool:
        """Whether other processes train the same model."""
        return self.shards is not None or bool(self.copies)

    @property
    def ranks(self) -> Ranks:
        """The ranks that a top-k runs over: those with the shards, or this process alone."""
        return ALONE if self.shards is None else self.shards

    @property
    def traffic(self) -> Traffic:
        """What this process sent to the others so far."""
        groups = [*self.copies, *([] if self.shards is None else [self.shards.group])]
        return sum((group.traffic for group in groups), Traffic())

    def verify_agreement(self, fingerprint: Fingerprint) -> None:
        """Raise on every rank if their fingerprints differ."""
        everyone: list[Any] = [(dist.get_rank() if self.exist else 0, asdict(fingerprint))]
        for group in [*([] if self.shards is None else [self.shards.group]), *self.copies]:
            everyone = list(itertools.chain.from_iterable(group.exchange(everyone)))
        (first_rank, first), *others = sorted(everyone, key=lambda entry: int(entry[0]))
        for what, expected in first.items():
            for rank, fields in others:
                if fields[what] != expected:
                    raise RuntimeError(
                        f"the ranks do not agree on the {what}: rank {first_rank} has {expected}, rank {rank} has "
                        f"{fields[what]}. Call sparsify with the same arguments on every rank, and load the same "
                        "checkpoint"
                    )

    def verify_topology(self, step: int, names: Sequence[str], checksums: Sequence[int]) -> None:
        """Raise on every rank, naming the layers, if their copies have different topologies; step 0 is the start."""
        for group in self.copies:
            everyone = group.gather([step, *checksums])
            differ = [
                name
                for name, column in zip(["step", *names], zip(*everyone, strict=True), strict=True)
                if len(set(column)) > 1
            ]
            if differ and step == 0:
                raise RuntimeError(
                    f"the start places the weights of {', '.join(differ)} differently on the ranks: let every rank "
                    "read the same batch and begin with the same weights"
                )
            if differ:
                raise RuntimeError(
                    f"after the rewiring at step {step} the ranks do not have the same {', '.join(differ)}: their "
                    "gradients, weights or checkpoints differed before. Start all of them from one checkpoint"
                )


def find_peers(
    model: nn.Module, parameters: Sequence[nn.Parameter], names: Sequence[str], search: bool = False
) -> Peers:
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
    sharded = [name for parameter, name in zip(parameters, names, strict=True) if is_sharded(parameter)]
    if sharded:
        if len(sharded) < len(parameters):
            whole = next(name for name in names if name not in sharded)
            raise ValueError(f"{sharded[0]} is sharded and {whole} is not: call fully_shard on the whole model too")
        return _sharded(parameters, names)
    ddp_model = _ddp(model)
    wrappers = [ddp_model] if ddp_model is not None else ddp_around(parameters) if search else []
    for wrapper in wrappers:
        leave_masks_alone(wrapper)
    return Peers(copies=[Group(wrappers[-1].process_group, parameters[0].device)] if wrappers else [])


def given_peers(
    group: dist.ProcessGroup, model: nn.Module, parameters: Sequence[nn.Parameter], names: Sequence[str]
) -> Peers:
    """The ranks of a process group, each of which holds a copy of these parameters."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("process_group was given, but torch.distributed is not initialised: init_process_group first")
    if _ddp(model) is not None:
        raise ValueError(
            "process_group was given together with a model that DDP has wrapped: give sparsify the model itself, "
            "build the optimizer from its parameters, and wrap it in DDP after sparsify"
        )
    sharded = next((name for parameter, name in zip(parameters, names, strict=True) if is_sharded(parameter)), None)
    if sharded is not None:
        raise ValueError(f"process_group names ranks with copies of the model, but {sharded} is sharded: leave it out")
    return Peers(copies=[Group(group, parameters[0].device)])


def _sharded(parameters: Sequence[Any], names: Sequence[str]) -> Peers:
    if parameters[0].is_meta:
        raise ValueError(f"{names[0]} has no memory yet: call model.to_empty and initialise it, then sparsify")
    layouts = [sharded_by_rows(parameter, name) for parameter, name in zip(parameters, names, strict=True)]
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
        model = inside_compiled(model)
    return model


def ddp_around(parameters: Iterable[nn.Parameter]) -> list[DistributedDataParallel]:
    """The wrappers that reduce the gradients of these parameters. They keep no list: the garbage collector is asked."""
    ours = {id(parameter) for parameter in parameters}
    # issubclass would take many times longer
    wrappers = [candidate for candidate in gc.get_objects() if DistributedDataParallel in type(candidate).__mro__]
    inside = [wrapped_by_ddp(wrapper) for wrapper in wrappers]
    return [
        wrapper
        for wrapper, model in zip(wrappers, inside, strict=True)
        if model is not None and any(id(parameter) in ours for parameter in model.parameters())
    ]


def leave_masks_alone(wrapper: DistributedDataParallel) -> None:
    """Masks agree by construction: DDP need not send them before every forward pass. They may not be there yet."""
    parameters = wrapper.module.named_parameters(remove_duplicate=False)
    ignore_buffers(wrapper, {mask_name(name) for name, parameter in parameters if parameter.dim() > 1})


def leave_out_of_ddp(model: nn.Module, sparse: Sequence[nn.Parameter], resized: Sequence[nn.Parameter]) -> None:
    """Let DDP, which wraps the model later, ignore weights that change their size, and the topology of all layers."""
    ignored = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(parameter is weight for weight in sparse):
            ignored.add(mask_name(name))
        if any(parameter is weight for weight in resized):
            ignored |= {name, name.removesuffix("weight") + POSITIONS}
    ignore_in_ddp(model, ignored)


def handshake(peers: Peers, model: nn.Module, layers: Sequence[Any], fingerprint: Fingerprint) -> Peers:
    """Before a step: look for ranks that were not known yet, and verify that all agree.

    A model may be wrapped in DDP after ``sparsify``; it must not be sharded after it, for its parameters are replaced.
    """
    for layer in layers:
        if not is_sharded(layer.parameter) and any(map(is_sharded, parameters_of(layer.module).values())):
            raise RuntimeError(
                f"{layer.name} was sharded after sparsify: call fully_shard first, then build the optimizer from "
                "model.parameters(), then sparsify"
            )
    if not peers.exist:
        peers = find_peers(model, [layer.parameter for layer in layers], [layer.name for layer in layers], search=True)
    if peers.exist:
        if fingerprint.rewires:
            refuse_store_across_ranks(fingerprint)
        peers.verify_agreement(fingerprint)
    return peers


def refuse_store_across_ranks(fingerprint: Fingerprint) -> None:
    """Raise if a rewiring resizes weights that DDP or FSDP reduces."""
    if not fingerprint.spans_ranks:
        raise ValueError(
            f"store={fingerprint.store!r} resizes weights, which DDP and FSDP cannot follow. For DDP, call "
            "sparsify(..., process_group=torch.distributed.group.WORLD) before wrapping: it averages the gradients of "
            "the packed weights itself, and DDP those of the others. Or use store='masked'"
        )
