"""What tests of `memcfg.torch` share. They run where there is PyTorch: tox's parity."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]

# PyTorch's compiler logs all that it traces for its own tools; pytest would keep it.
logging.getLogger("torch.__trace").addFilter(lambda _: False)


@pytest.hookimpl(tryfirst=True)  # before the marked ones are skipped
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("parity")


@pytest.fixture
def fresh_torch(tmp_path_factory, monkeypatch):
    """Nothing traced so far, a seed, and costs of ops that tests measure once."""
    import torch

    folder = tmp_path_factory.getbasetemp() / "torch_costs"
    monkeypatch.setenv("MEMCFG_TORCH_COSTS", str(folder))
    torch._dynamo.reset()
    torch.manual_seed(3)


@pytest.fixture
def pool(fresh_torch):
    """All CPU tensors in a pool that counts, with room for what a plan misses."""
    import memcfg.torch as mt

    mt.limit_cpu("2GiB", tag_modules=False)
    yield mt.cpu_pool()
    mt.limit_cpu(None)
