"""Every test here starts without workspaces and has a pool of its own."""

from __future__ import annotations

import gc

import pytest

import memcfg as mc
from memcfg import memory


@pytest.fixture(autouse=True)
def _without_workspaces():
    yield
    assert mc.workspaces.current_workspace() is None
    mc.destroy_all_workspaces(thread="all")


@pytest.fixture
def pool():
    """A pool that nothing may be left in when the test's workspaces are gone."""
    pool = memory.Pool(limit="512MiB", name="workspaces")
    yield pool
    mc.destroy_all_workspaces(thread="all")
    gc.collect()
    pool.check()
    assert pool.owners() == {}
