"""Out of a workspace: D1 to D11 of ND4J's tests (D12: see NOT_PORTED.md)."""

from __future__ import annotations

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg.errors import (
    NoSuchWorkspaceError,
    WorkspaceLeakError,
    WorkspaceStaleError,
)

BASIC = mc.WorkspaceConfig(initial_size="10MiB", allocation="strict", learning="none")
COLD = mc.WorkspaceConfig(allocation="strict")
FIVE = up(40)


@pytest.fixture
def make(pool):
    return lambda name="one", config=BASIC: mc.workspace(name, config, resource=pool)


def five(ws) -> np.ndarray:
    return ws.array([1.0, 2, 3, 4, 5])


def test_d1_detach(make):
    with make() as ws:
        a = five(ws)
        assert mc.is_attached(a)
        assert mc.workspaces.is_in_scope(a)
        assert ws.stats().offset == FIVE
        b = mc.detach(a)
        assert ws.stats().offset == FIVE
        assert b is not a
        assert not np.shares_memory(a, b)
        assert not mc.is_attached(b)
        assert mc.workspaces.is_in_scope(b)
        del a
    assert b.sum() == 15
    assert mc.workspaces.is_in_scope(b)
    assert mc.detach(b) is b


def test_d1_the_workspace_detaches_too(make):
    with make() as ws:
        b = ws.detach(five(ws))
    assert not mc.is_attached(b)
    assert b.sum() == 15


def test_d2_made_outside_from_the_start(make):
    with make() as ws:
        with mc.scope_out():
            a, scalar = np.ones(5), np.ones(())
        assert not mc.is_attached(a)
        assert ws.stats().offset == 0
    assert (scalar.shape, scalar.size) == ((), 1)
    assert mc.detach(scalar) is scalar


def test_d3_leverage_to_the_parent(make):
    with make("outer") as outer:
        with make("inner") as inner:
            a = five(inner)
            assert [ws.stats().offset for ws in (outer, inner)] == [0, FIVE]
            b = mc.workspaces.leverage(a)
            assert [ws.stats().offset for ws in (outer, inner)] == [FIVE, FIVE]
            assert mc.workspace_of(b) is outer
            del a
        assert b.sum() == 15
        assert mc.workspaces.is_in_scope(b)
        del b


def test_d3_leverage_without_a_parent_detaches(make):
    with make() as ws:
        b = mc.workspaces.leverage(five(ws))
        assert not mc.is_attached(b)
    assert b.sum() == 15


def test_d3_leverage_to_a_name(make):
    with make("outer") as outer:
        a = five(outer)
        with make("inner") as inner:
            b = five(inner)
            assert outer.stats().offset == FIVE
            c = mc.workspaces.leverage_to(b, "outer")
            d = mc.workspaces.leverage_to(b, outer)
            assert outer.stats().offset == 3 * FIVE
            assert inner.stats().offset == FIVE
            assert mc.workspaces.leverage_to(c, outer) is c
            del b
        assert c.sum() == d.sum() == 15
        del a, c, d


def test_d4_leverage_to_a_cold_workspace(make):
    with make("outer", COLD) as outer:
        inner = make("inner")
        with inner:
            a = five(inner)
            b = mc.workspaces.leverage_to(a, outer)
            a += 1
            assert outer.stats().size == 0
            del a
        with inner:
            c = inner.full(5, 7.0)
            assert b.tolist() == [1, 2, 3, 4, 5]
            del c
        del b


def test_d4_of_a_view_only_what_it_shows(make):
    with make("outer") as outer:
        with make("inner") as inner:
            whole = inner.ones((32, 1, 40))
            view = whole[3]
            b = mc.workspaces.leverage(view)
            assert outer.stats().offset == up(40 * 8)
            assert b.shape == (1, 40)
            del whole, view
        del b


@pytest.mark.parametrize("config", [BASIC, COLD])
def test_d5_attached_inside_only(make, config):
    with make(config=config) as ws:
        a = np.empty(100)
        assert mc.is_attached(a)
        assert mc.is_attached(a[3:].reshape(1, -1))
        assert mc.workspace_of(a) is ws
        del a
    b = np.empty(100)
    assert not mc.is_attached(b)
    with make("other"):
        assert mc.workspaces.leverage_to(b, "other") is b
        assert not mc.is_attached(b)


def test_d5_a_workspace_that_nobody_knows(make):
    with make() as ws:
        a = five(ws)
        with pytest.raises(NoSuchWorkspaceError, match="nobody"):
            mc.workspaces.leverage_to(a, "nobody")
        del a


def test_d6_in_scope_until_it_is_closed(make):
    with make() as ws:
        a = five(ws)
        assert mc.workspaces.is_in_scope(a)
    assert not mc.workspaces.is_in_scope(a)
    with ws:
        assert not mc.workspaces.is_in_scope(a)


WAYS = {
    "leverage": mc.workspaces.leverage,
    "leverage_to": lambda a: mc.workspaces.leverage_to(a, "other"),
    "leverage_or_detach": lambda a: mc.workspaces.leverage_or_detach(a, "other"),
    "detach": mc.detach,
    "migrate": mc.workspaces.migrate,
    "migrate, else detach": lambda a: mc.workspaces.migrate(a, detach=True),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_d7_out_of_a_scope_that_is_closed(make, way):
    ws = make(config=BASIC.replace(on_escape="invalidate"))
    for step in range(10):
        with ws:
            last = ws.full(10, step)
    assert not mc.workspaces.is_valid(last)
    other = make("other")
    for _ in range(2):
        with pytest.raises(WorkspaceLeakError, match=r"one[\s\S]*detach"):
            way(last)
        with other, pytest.raises(WorkspaceLeakError):
            way(last)
    with pytest.raises(AssertionError, match="one"):
        mc.testing.assert_valid(last)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_d8_out_of_an_earlier_cycle(make, way):
    ws = make(config=BASIC.replace(on_escape="invalidate"))
    other = make("other")
    for step in range(4):
        with ws:
            if step == 3:
                assert not mc.workspaces.is_valid(a)  # noqa: F821
                with pytest.raises(WorkspaceStaleError, match=r"3[\s\S]*4"):
                    way(a)  # noqa: F821
                with other, pytest.raises(WorkspaceStaleError):
                    way(a)  # noqa: F821
                with mc.scope_out(), pytest.raises(WorkspaceStaleError):
                    way(a)  # noqa: F821
                break
            a = ws.full(10, step)
    assert mc.workspaces.generation_of(a) == 3


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_d7_d8_by_default_the_same_arrays_are_whole(make, way):
    ws, other = make(), make("other")
    kept = []
    for step in range(10):
        with ws:
            kept.append(ws.full(10, step))
    with other:
        for step, a in enumerate(kept):
            assert mc.workspaces.is_valid(a)
            assert (a == step).all()
            b = way(a)
            assert (b == step).all()
            assert not np.shares_memory(a, b)
            del b
    for step, a in enumerate(kept):
        assert not mc.workspaces.is_in_scope(a)
        b = mc.detach(a)
        assert not mc.is_attached(b)
        assert (b == step).all()
    assert ws.stats().escaped_arrays == 10


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "?", "M8[s]", "U7"])
def test_d9_the_dtype_is_kept(make, dtype):
    with make("outer") as outer:
        with make("inner") as inner:
            a = inner.zeros((10, 10), dtype)
            assert a.dtype == dtype
            b, c = mc.workspaces.leverage(a), mc.detach(a)
            assert (b.dtype, c.dtype) == (a.dtype, a.dtype)
            assert mc.workspace_of(b) is outer
            assert not mc.is_attached(c)
            assert (b == a).all()
            del a
        del b


def test_d10_a_view_detaches_into_an_array_of_its_own(make):
    config = mc.WorkspaceConfig(initial_size=10_000_000, spill="reallocate")
    with make(config=config) as ws:
        matrix = ws.empty((10, 10))
        matrix[:] = np.arange(1, 11)
        column = matrix[:, 1]
        assert column.base is matrix
        assert mc.is_attached(column)
        result = mc.detach(column)
        del matrix, column
    assert not mc.is_attached(result)
    assert result.base is None
    assert result.flags.c_contiguous
    assert result.tolist() == [2.0] * 10


def test_d11_migrate_into_the_current_workspace(make):
    a = np.array([1, 2], np.int64)
    with make() as ws:
        b = mc.workspaces.migrate(a)
        assert mc.workspace_of(b) is ws
        assert (b.dtype, b.tolist()) == (np.int64, [1, 2])
        assert mc.workspaces.migrate(b) is b
        del b
    assert mc.workspaces.migrate(a) is a
    with make() as ws:
        c = ws.array([1, 2])
        with mc.scope_out():
            assert mc.workspaces.migrate(c) is c
            d = mc.workspaces.migrate(c, detach=True)
        assert not mc.is_attached(d)
        del c


def test_nested_containers_keep_their_kind(make):
    with make() as ws:
        tree = {"a": five(ws), "b": (five(ws), [five(ws), None, "text"], 3)}
        out = mc.detach(tree)
        del tree
    assert out["a"].sum() == out["b"][0].sum() == out["b"][1][0].sum() == 15
    assert type(out["b"]) is tuple
    assert out["b"][1][1:] == [None, "text"]
    assert out["b"][2] == 3
    assert not mc.is_attached(out["a"])


def test_leverage_or_detach_asks_whether_it_is_open(make):
    other = make("other")
    with make() as ws:
        a = five(ws)
        b = mc.workspaces.leverage_or_detach(a, "other")
        assert not mc.is_attached(b)
        with other, ws.borrow():
            c = mc.workspaces.leverage_or_detach(a, other)
            assert mc.workspace_of(c) is other
            del c
        del a


def test_only_arrays_leave(make):
    for question in (
        mc.is_attached,
        mc.workspaces.is_valid,
        mc.workspaces.is_in_scope,
        mc.workspace_of,
    ):
        with make(), pytest.raises(TypeError, match="not an array"):
            question("no array")
    with pytest.raises(TypeError, match="an array is needed"):
        mc.detach("no array")
