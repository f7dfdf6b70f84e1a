"""Requests that do not fit: each spill policy, full files, limits."""

from __future__ import annotations

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg import memory
from memcfg.errors import (
    InvalidFreeError,
    ResourceExhaustedError,
    WorkspaceFullError,
    WorkspaceSpillWarning,
)

MIB = 2**20
BASIC = mc.WorkspaceConfig(initial_size="1MiB", allocation="strict", learning="none")
LEARNS = mc.WorkspaceConfig(allocation="strict")
RING = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3)


@pytest.fixture
def make(pool):
    return lambda config=BASIC, name="one": mc.workspace(name, config, resource=pool)


@pytest.mark.parametrize("config", [BASIC, LEARNS, RING])
def test_oversized_requests(make, pool, config):
    for spill in "external", "reallocate":
        ws = make(config.replace(spill=spill), spill)
        for _ in range(3):
            with ws:
                small = ws.ones(10)
                del small
        before = ws.stats().offset
        known = ws.stats().spilled_bytes if config is RING else 0
        with ws:
            large = ws.full(4 * MIB, 2.0)
            assert mc.workspace_of(large) is ws
            stats = ws.stats()
            large_ones = stats.spilled_bytes + stats.pinned_bytes - known
            assert large_ones == 32 * MIB
            assert stats.offset == before
            assert large[0] == large[-1] == 2
            del large
        assert pool.stats().current_bytes < 32 * MIB or spill == "reallocate"
    ws = make(config.replace(spill="fail"), "fail")
    for _ in range(3):
        with ws:
            small = ws.ones(10)
            del small
    before = ws.stats()
    with ws:
        with pytest.raises(WorkspaceFullError) as caught:
            ws.empty(4 * MIB)
        assert caught.value.requested_bytes == 32 * MIB
        assert ws.stats().offset == before.offset
    with pytest.raises(WorkspaceFullError), ws:
        np.empty(4 * MIB)
    assert mc.workspaces.current_workspace() is None


def test_more_than_the_device_has(make):
    with make() as ws:
        with pytest.raises(ResourceExhaustedError) as caught:
            ws.empty(2**28)
        assert not isinstance(caught.value, WorkspaceFullError)
        assert caught.value.limit_bytes == 512 * MIB
        assert ws.stats().spilled_count == 0
        array = ws.ones(10)
        assert ws.stats().offset == up(80)
        del array


@pytest.mark.parametrize("spill", ["external", "reallocate", "fail"])
def test_a_mapped_file_that_is_full(make, tmp_path, spill):
    config = mc.WorkspaceConfig(
        location="mmap",
        path=tmp_path / "full",
        learning="none",
        initial_size=4096,
        spill=spill,
    )
    ws = make(config)
    with ws:
        first, scalar = ws.full(504, 1.0), ws.empty(())
        assert ws.stats().offset == 4096
        if spill == "fail":
            with pytest.raises(WorkspaceFullError):
                ws.empty(1)
        else:
            second = ws.full(512, 2.0)
            assert ws.stats().spilled_count == 1
            np.sum(second, out=scalar)
            assert scalar.item() == 1024
            del second
        with mc.scope_out():
            assert first.sum() == 504
        del first, scalar
    ws.destroy()
    assert (tmp_path / "full").stat().st_size == 4096


def test_a_page_in_a_file_that_somebody_keeps(make, tmp_path):
    config = mc.WorkspaceConfig(
        location="mmap", path=tmp_path / "kept", learning="none", initial_size=4096
    )
    ws = make(config)
    with ws:
        kept = ws.full(100, 1.0)
    with pytest.warns(WorkspaceSpillWarning, match="one"):
        ws.open()
    spilled = ws.full(100, 2.0)
    assert ws.stats().spilled_count == 1
    assert (kept == 1).all()
    del spilled
    ws.close()
    del kept
    with ws:
        again = ws.full(100, 3.0)
        assert ws.stats().spilled_count == 0
        del again


def test_an_initial_size_that_the_limit_forbids(make, pool):
    with pytest.raises(ResourceExhaustedError) as caught:
        make(BASIC.replace(initial_size="600MiB"))
    assert caught.value.limit_bytes == 512 * MIB
    assert not mc.workspaces.workspace_exists("one")
    assert pool.stats().current_bytes == 0
    with make(BASIC) as ws:
        assert ws.stats().size == MIB


def test_a_learned_size_that_the_limit_forbids(make, pool):
    ws = make(LEARNS)
    held = pool.allocate(512 * MIB - 2 * 8000)
    with ws:
        for _ in range(20):  # never two at once, but the page would hold them all
            array = np.zeros(1000)
            del array
    with pytest.warns(WorkspaceSpillWarning, match="one"):
        ws.open()
    array = ws.ones(1000)
    assert mc.workspace_of(array) is ws
    assert ws.stats().spilled_count == 1
    del array
    ws.close()
    with ws:  # it is told once
        array = ws.ones(1000)
        assert ws.stats().spilled_count == 1
        del array
    held.free()
    with ws:  # and tried again
        array = ws.ones(1000)
        assert ws.stats().spilled_count == 0
        assert ws.stats().offset == 8000
        del array
    assert ws.stats().size == 160_000


def test_pages_and_spilled_blocks_are_not_freed_below(make, pool):
    with make() as ws:
        first, large = ws.ones(2**18, np.float32), ws.ones(MIB, np.float32)
        held = memory.list_live(pool)
        assert {first.ctypes.data, large.ctypes.data} == {each.address for each in held}
        for each in held:
            with pytest.raises(InvalidFreeError, match="WorkspaceMemory on top"):
                pool.deallocate(each.address, each.nbytes)
        assert memory.list_live(pool) == held
        assert first.all()
        assert large.all()
        del first, large
    pool.check()
