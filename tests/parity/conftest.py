"""What tests of traced PyTorch share."""

from __future__ import annotations

import logging

import pytest

# PyTorch's compiler logs all that it traces for its own tools; pytest would keep it.
logging.getLogger("torch.__trace").addFilter(lambda _: False)


@pytest.fixture
def fresh_torch(tmp_path_factory, monkeypatch):
    """Nothing traced so far, a seed, and costs of ops that tests measure once."""
    import torch

    folder = tmp_path_factory.getbasetemp() / "torch_costs"
    monkeypatch.setenv("MEMCFG_TORCH_COSTS", str(folder))
    torch._dynamo.reset()
    torch.manual_seed(3)
