"""Tests of what the oldest supported torch does not have yet."""

import pytest
import torch

MUON = getattr(torch.optim, "Muon", None)
needs_muon = pytest.mark.skipif(MUON is None, reason="torch has Muon since 2.9")
