"""The sanitizers notice an access out of bounds. ``make sanitize`` only."""

import subprocess
import sys

import pytest
from tests.kernels.conftest import SANITIZED

CODE = """
import torch
from rewire.kernels import library
from rewire.kernels.batch.plan import Plan
from rewire.kernels.geometry import Geometry

geometry, positions = Geometry((4, 6, 1, 1)), torch.arange(24)
native = library.load("{isa}")
plan = Plan(native, geometry, positions, 1, 1)
x, values, y = torch.zeros(5 * 16), torch.zeros(24), torch.zeros(4 * 16)  # one channel less than the plan says
arrays = (positions.data_ptr(), 1, x.data_ptr(), values.data_ptr(), None, y.data_ptr(), None, None)
native.rewire_conv_forward(plan.shape, plan.forward_csr, plan.forward, *arrays, 16, 0, -1.0, 1)
"""


@pytest.mark.skipif(not SANITIZED, reason="only make sanitize checks memory accesses")
def test_native_reads_out_of_bounds_are_caught():
    from rewire.kernels import library

    for isa in library.available():
        code = [sys.executable, "-c", CODE.format(isa=isa)]
        done = subprocess.run(code, capture_output=True, text=True, timeout=120)
        assert done.returncode != 0
        assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
