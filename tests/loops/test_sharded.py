"""A shard whose elements share their memory is refused, as an ordinary expanded weight is."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import rewire


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh, shard):
    model = nn.Linear(4, 6, bias=False)
    model.weight = nn.Parameter(DTensor.from_local(shard, mesh, [Shard(0)], shape=(6, 4), stride=(4, 1)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_expanded_local_shard(mesh):
    model, optimizer = sharded(mesh, torch.ones(1, 4).expand(6, 4))
    with pytest.raises(ValueError, match="several weights of weight share their memory"):
        rewire.sparsify(model, optimizer, rewire.static(density=0.5))


def test_an_expanded_gradient_of_a_shard(mesh):
    model, optimizer = sharded(mesh, torch.ones(6, 4))
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5))
    grad = torch.ones(1, 1).expand(6, 4)
    model.weight.grad = DTensor.from_local(grad, mesh, [Shard(0)], shape=(6, 4), stride=(4, 1))
    optimizer.step()
    rewirer.check()
    assert int((model.weight.to_local() != 0).sum()) == rewirer.nnz == 12
