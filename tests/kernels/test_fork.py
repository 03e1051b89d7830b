"""A forked child neither writes into its parent's activations nor waits for its parent's threads."""

import subprocess
import sys

import pytest

from rewire.kernels import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")

CHILD_WRITES = """
import os, torch
from rewire.kernels.memory import MIN_POOLED, POOL
torch.set_num_threads(1)
tensor, freed = POOL.empty(MIN_POOLED).fill_(1.0), POOL.empty(MIN_POOLED).fill_(1.0)
address = freed.data_ptr()
del freed
child = os.fork()
if child == 0:
    tensor.fill_(2.0)
    reused = POOL.empty(MIN_POOLED).fill_(2.0)
    os._exit(0 if reused.data_ptr() == address and bool((tensor == 2).all()) else 1)
assert os.waitpid(child, 0)[1] == 0
assert bool((tensor == 1).all())
reused = POOL.empty(MIN_POOLED)
assert reused.data_ptr() == address and bool((reused == 1).all())
"""

# torch's own parallel operations hang in such a child, so it compares with NumPy.
CHILD_COMPUTES = """
import os, numpy, torch
from rewire.kernels import info
from rewire.kernels.batch import conv
from rewire.kernels.geometry import Geometry, to_hwcn
torch.manual_seed(0)
torch.set_num_threads(2)
geometry = Geometry((32, 32, 3, 3), padding=(1, 1))
x, positions = torch.randn(16, 16, 32, 32).permute(3, 2, 0, 1), torch.randperm(geometry.numel)[:900].sort().values.int()
values = torch.randn(900)
def step():
    y = conv.forward(x, values, positions, None, geometry)
    return (to_hwcn(y).numpy(), *(to_hwcn(g).numpy() if g.dim() == 4 else g.numpy()
                                  for g in conv.backward(y, x, values, positions, geometry, (True, True))))
before = step()
assert info()["threads"] == 2
child = os.fork()
if child == 0:
    right = info()["threads"] == 1 and torch.get_num_threads() == 2
    for one, other in zip(step(), before):
        right &= numpy.allclose(one, other, rtol=1e-4, atol=1e-2 * abs(other).max())
    os._exit(0 if right else 1)
assert os.waitpid(child, 0)[1] == 0
assert all(numpy.array_equal(one, other) for one, other in zip(step(), before))
"""


@pytest.mark.parametrize("code", [CHILD_WRITES, CHILD_COMPUTES])
def test_native_kernels_in_a_forked_child(code):
    alarmed = code.replace("if child == 0:", "if child == 0:\n    signal.alarm(90)")  # no process outlives the test
    guarded = "import signal; signal.alarm(100)\n" + alarmed
    done = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
