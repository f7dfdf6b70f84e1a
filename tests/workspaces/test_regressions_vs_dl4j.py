"""Defects of ND4J's workspaces that are not to come back here.

The numbers are those of the list that the studies of ND4J made: 6 to 13 and 17, C6 and
C10.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg.errors import (
    WorkspaceConfigError,
    WorkspaceError,
    WorkspaceLeakError,
    WorkspaceStaleError,
)

BASIC = mc.WorkspaceConfig(initial_size="1MiB", allocation="strict", learning="none")
RING = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=3)


@pytest.fixture
def make(pool):
    return lambda config=BASIC, name="one": mc.workspace(name, config, resource=pool)


def cycle(ws, *counts: int) -> None:
    with ws:
        arrays = [np.empty(count) for count in counts]
        del arrays


def test_6_what_is_made_while_disabled_goes_when_it_dies(make, pool):
    ws = make()
    before = pool.stats().current_bytes
    for _ in range(100):
        with ws, ws.disabled():
            array = np.empty(1000)
            assert pool.stats().current_bytes == before + 8000
            del array
            assert pool.stats().current_bytes == before


def test_7_growth_reaches_the_maximum(make):
    ws = make(mc.WorkspaceConfig(spill="reallocate", max_size=4096))
    cycle(ws, 100)
    assert ws.stats().size < 4096
    cycle(ws, 10_000)
    assert ws.stats().size == 4096


@pytest.mark.parametrize("overallocation", [1.0, 1.5, 2.9, 7.25])
def test_8_every_block_of_a_ring_is_aligned_and_whole(make, overallocation):
    ws = make(RING.replace(overallocation=overallocation))
    cycle(ws, 101, 7)
    stats = ws.stats()
    assert stats.size == ws.config.ring_blocks * stats.block_size
    for _ in range(3 * ws.config.ring_blocks):
        with ws:
            array = np.empty(101)
            assert array.ctypes.data % 64 == 0
            del array
        assert ws.stats().offset % stats.block_size == 0


def mapped(path, initial_size=0):
    return mc.WorkspaceConfig(
        location="mmap", path=path, learning="none", initial_size=initial_size
    )


def test_9_a_file_that_is_too_short_grows_and_keeps_its_bytes(make, tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"precious" * 100)
    ws = make(mapped(path, 4096))
    assert ws.stats().size == 4096
    ws.destroy()
    assert path.read_bytes() == b"precious" * 100 + bytes(4096 - 800)


def test_9_a_file_that_is_too_long_is_not_cut(make, tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"precious" * 1000)
    with pytest.raises(WorkspaceConfigError, match="overwrite=True"):
        make(mapped(path, 4096))
    assert path.read_bytes() == b"precious" * 1000
    assert not mc.workspaces.workspace_exists("one")


def test_9_a_longer_file_changes_nobody_s_configuration(make, tmp_path):
    path = tmp_path / "long"
    path.write_bytes(bytes(10_000))
    config = mapped(path)
    ws = make(config)
    assert config.initial_size == 0
    assert ws.config == config == mapped(path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.initial_size = 10_000
    ws.destroy()
    assert path.stat().st_size == 10_000


def test_9_a_file_is_as_long_as_it_was_to_be(make, tmp_path):
    ws = make(mapped(tmp_path / "new", 1_000_000))
    with ws:
        array = ws.full(100_000, 3.0)
        del array
    ws.flush()
    ws.destroy()
    assert (tmp_path / "new").stat().st_size == 1_000_000
    assert np.fromfile(tmp_path / "new", count=3).tolist() == [3, 3, 3]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.complex128])
def test_10_leverage_keeps_the_dtype(make, dtype):
    with make(name="outer"):
        with make() as ws:
            array = mc.workspaces.leverage(ws.ones(10, dtype))
        assert array.dtype == dtype
        assert (array == 1).all()
        del array


def test_11_nothing_is_put_into_a_workspace_that_is_closed(make):
    closed = make(name="closed")
    with make() as ws:
        array = ws.ones(10)
        with pytest.raises(WorkspaceError, match="not open"):
            mc.workspaces.leverage_to(array, "closed")
        with pytest.raises(WorkspaceError, match="not open"):
            closed.borrow().__enter__()
        assert mc.workspaces.current_workspace() is ws
        assert mc.workspace_of(array) is ws
        del array
    assert closed.stats().live_arrays == 0


def test_12_arrays_that_a_ring_overwrites_are_detected(make):
    ws = make(RING.replace(on_escape="invalidate"))
    cycle(ws, 100)
    kept = []
    for step in range(10):
        with ws:
            kept.append(ws.full(100, step))
        valid = [mc.workspaces.is_valid(array) for array in kept]
        assert valid == [step - age < 4 for age in range(step + 1)]
    with pytest.raises((WorkspaceLeakError, WorkspaceStaleError)):
        mc.detach(kept[0])
    assert mc.detach(kept[-1]).tolist() == [9.0] * 100
    for step, array in enumerate(kept):
        assert not mc.workspaces.is_valid(array) or (array == step).all()


def test_12_arrays_in_a_ring_are_not_overwritten(make):
    ws = make(RING)
    cycle(ws, 100)
    kept = []
    for step in range(20):
        with ws:
            kept.append(ws.full(100, step))
    for step, array in enumerate(kept):
        assert mc.workspaces.is_valid(array)
        assert (array == step).all()


def test_13_one_giant_batch_is_not_for_ever(make, pool):
    ws = make(mc.WorkspaceConfig(spill="reallocate"))
    cycle(ws, 100)
    small = ws.stats().size
    cycle(ws, 1_000_000)
    cycle(ws, 1_000_000)
    assert ws.stats().size > 8_000_000
    cycle(ws, 100)
    assert ws.trim() > 7_000_000
    assert ws.stats().size == small
    assert pool.stats().current_bytes <= small
    cycle(ws, 100)
    assert ws.stats().spilled_count == 0
    assert ws.stats().size == small


def test_13_a_configuration_is_never_ignored(make):
    ws = make()
    with pytest.raises(WorkspaceConfigError, match="one"):
        make(BASIC.replace(initial_size="2MiB"))
    assert make(BASIC.replace()) is ws
    assert mc.workspace("one") is ws


def test_13_a_name_is_used_once(make, pool):
    ws = make()
    with pytest.raises(WorkspaceConfigError, match="one"):
        mc.Workspace(BASIC, "one", resource=pool)
    assert mc.workspace("one") is ws
    ws.destroy()
    again = mc.Workspace(BASIC, "one", resource=pool)
    assert mc.workspace("one") is again


def test_17_an_error_names_the_array_that_it_means(make):
    ws = make(BASIC.replace(on_escape="error"))
    ws.open()
    kept, other = ws.ones((3, 5), np.float32), ws.ones((7, 11))
    del other
    with pytest.raises(WorkspaceLeakError) as caught:
        ws.close()
    assert "60 B" in str(caught.value) or "(3, 5)" in str(caught.value)
    assert "616" not in str(caught.value)
    assert "(7, 11)" not in str(caught.value)
    assert "one" in str(caught.value)
    assert (kept == 1).all()


def test_c6_the_blocks_of_a_ring_follow_from_the_rest():
    assert RING.ring_blocks == 4
    assert RING.replace(overallocation=1.5).ring_blocks == 2
    assert RING.replace(allocation="strict").ring_blocks == 1
    assert mc.WorkspaceConfig().ring_blocks == 1
    with pytest.raises(AttributeError):
        RING.ring_blocks = 2
    with pytest.raises(WorkspaceConfigError, match="ring_blocks"):
        RING.replace(ring_blocks=2)


def test_c10_the_alignment_is_64(make):
    with make() as ws:
        for nbytes in 1, 63, 64, 65, 1000:
            before = ws.stats().offset
            array = np.empty(nbytes, np.uint8)
            assert array.ctypes.data % 64 == 0
            assert ws.stats().offset == before + up(nbytes)
        del array
