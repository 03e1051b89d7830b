"""That the sanitizers watch at all: a kernel that is lied to must be caught. ``make sanitize`` only."""

import os
import subprocess
import sys

import pytest

LIE = """
import ctypes, torch
from rewire.kernels import library, ops
from rewire.kernels.geometry import Geometry

geometry, positions = Geometry((4, 6, 1, 1)), torch.arange(24)
plan = ops.plan_for(geometry, positions, 1, 1)
x, values, y = torch.zeros(5 * 16), torch.zeros(24), torch.zeros(4 * 16)  # one channel less than the tables say
kernel = library.load("{level}").rewire_forward
tables = [ctypes.addressof(one) for one in (plan.layer, plan.forward_tables, plan.forward)]
given = (positions.data_ptr(), 1, x.data_ptr(), values.data_ptr(), None, y.data_ptr(), None, None)
kernel(*tables, *given, 16, 0, -1.0, 1)
"""


@pytest.mark.skipif("libasan" not in os.environ.get("LD_PRELOAD", ""), reason="only make sanitize watches memory")
def test_native_reads_out_of_bounds_are_caught():
    from rewire.kernels import library

    for level in library.available():
        code = [sys.executable, "-c", LIE.format(level=level)]
        done = subprocess.run(code, capture_output=True, text=True, timeout=120)
        assert done.returncode != 0
        assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
