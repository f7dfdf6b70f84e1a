"""Scopes, offsets and nesting: S1 to S15 of ND4J's tests."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from workspace_rules import up

import memcfg as mc
from memcfg.errors import WorkspaceFullError

BASIC = mc.WorkspaceConfig(initial_size="10MiB", allocation="strict", learning="none")
FIVE, HUNDRED = up(40), up(800)


@pytest.fixture
def make(pool):
    return lambda name="one", config=BASIC: mc.workspace(name, config, resource=pool)


def offsets(*workspaces) -> list[int]:
    return [ws.stats().offset for ws in workspaces]


def current() -> str | None:
    ws = mc.workspaces.current_workspace()
    return ws and ws.name


def test_s1_without_a_workspace_arrays_just_work():
    array = np.arange(5.0)
    assert array.sum() == 10
    assert not mc.is_attached(array)
    assert mc.workspace_of(array) is None


def test_s1_five_doubles(make):
    ws = make()
    assert ws.stats().offset == 0
    with ws:
        array = ws.array([1.0, 2.0, 3.0, 4.0, 5.0])
        assert ws.stats().offset == FIVE
        again = array.copy()
        assert ws.stats().offset == 2 * FIVE
        assert array.tolist() == again.tolist() == [1, 2, 3, 4, 5]
        assert array.sum() == again.sum() == 15
        del array, again


def test_s2_a_matrix_and_its_copy(make):
    generator = np.random.default_rng(0)
    with make() as ws:
        array = ws.empty((100, 10))
        assert ws.stats().offset == 8000
        generator.random(out=array)
        assert ws.stats().offset == 8000
        again = array.copy()
        assert ws.stats().offset == 16_000
        assert (array == again).all()
        del array, again


def test_s3_fail_leaves_the_offset(make):
    ws = make(config=BASIC.replace(initial_size="1MiB", spill="fail"))
    with ws:
        array = ws.empty(5)
        assert ws.stats().offset == FIVE
        with pytest.raises(WorkspaceFullError) as caught:
            ws.empty(10_000_000)
        assert caught.value.requested_bytes == 80_000_000
        with pytest.raises(MemoryError):
            np.empty(10_000_000)
        assert ws.stats().offset == FIVE
        again = ws.empty(5)
        assert ws.stats().offset == 2 * FIVE
        del array, again
    with pytest.raises(WorkspaceFullError), ws:
        np.empty(10_000_000)
    assert not ws.is_open


def test_s4_what_is_made_while_it_is_disabled_is_not_learned(make):
    ws = make(config=mc.WorkspaceConfig(allocation="strict"))
    for number in range(2):
        with ws:
            first = np.empty(100)
            with ws.disabled():
                assert not ws.enabled
                bypassed = np.full(100, 2.0)
                assert not mc.is_attached(bypassed)
                assert ws.stats().offset == number * HUNDRED
                assert bypassed.sum() == 200
            second = np.empty(100)
            assert ws.stats().offset == number * 2 * HUNDRED
            del first, second
        assert (ws.stats().offset, ws.stats().size) == (0, 2 * HUNDRED)
    assert bypassed[-1] == 2.0
    del bypassed


def test_s5_one_inside_another(make):
    with make("1") as one:
        a = np.empty(100)
        with make("2") as two:
            b = np.empty(100)
            assert two.parent is one
            with make("3") as three:
                c = np.empty(100)
                assert offsets(one, two, three) == [HUNDRED] * 3
                del c
            d = np.empty(100)
            assert offsets(one, two, three) == [HUNDRED, 2 * HUNDRED, 0]
            del b, d
        e = np.empty(100)
        assert offsets(one, two, three) == [2 * HUNDRED, 0, 0]
        del a, e
    assert offsets(one, two, three) == [0, 0, 0]
    assert current() is None


def test_s5_one_after_another_inside(make):
    with make("1") as one:
        a = np.empty(100)
        for name in "23":
            with make(name) as ws:
                assert ws.stats().offset == 0
                b = np.empty(100)
                assert offsets(one, ws) == [HUNDRED, HUNDRED]
                del b
        del a


def test_s6_entered_twice_it_is_not_reset(make):
    with make() as ws:
        a = np.empty(100)
        with make() as again:
            assert again is ws
            b = np.empty(100)
        assert ws.is_open
        assert ws.stats().offset == 2 * HUNDRED
        c = np.empty(100)
        assert ws.stats().offset == 3 * HUNDRED
        assert ws.stats().generation == 1
        del a, b, c
    assert current() is None
    assert ws.stats().cycles == 1


def test_s7_borrowed_inside_another(make):
    with make("1") as one:
        a = one.array([6.0, 3, 1, 9, 21])
        with make("2") as two:
            b = two.array([1.0, 2, 3, 4, 5])
            assert offsets(one, two) == [FIVE, FIVE]
            with one.borrow() as borrowed:
                assert borrowed is one
                assert mc.workspaces.current_workspace() is one
                c = b.copy()
                assert mc.workspace_of(c) is one
                assert offsets(one, two) == [2 * FIVE, FIVE]
            assert mc.workspaces.current_workspace() is two
            assert offsets(one, two) == [2 * FIVE, FIVE]
            assert c.sum() == 15
            del b
        del a, c
    assert current() is None


@pytest.mark.parametrize("config", [BASIC, mc.WorkspaceConfig(allocation="strict")])
def test_s8_outside_of_a_borrowed_one(make, config):
    with make("outer", config) as outer:
        with make("inner", config):
            with outer.borrow():
                a = np.empty(10)
                with mc.scope_out():
                    b = np.empty(10)
                c = np.empty(10)
            assert [mc.workspace_of(x) for x in (a, b, c)] == [outer, None, outer]
            assert [mc.is_attached(x) for x in (a, b, c)] == [True, False, True]
        assert outer.stats().size == config.initial_size
        del a, c


def test_s9_nested_and_borrowed_of_growing_sizes(make):
    for count in range(1, 10):
        with make() as ws:
            a = np.empty(100 * count)
            with make():
                b = np.empty(100 * count)
                with ws.borrow():
                    c = np.empty(100 * count)
            assert mc.workspaces.current_workspace() is ws
            assert ws.stats().offset == 3 * up(800 * count)
            del a, b, c
    assert current() is None


def test_s10_the_way_in_and_out(make):
    seen = []
    with make("outer") as outer:
        with make("inner"):
            with outer.borrow():
                seen.append(current())
                with mc.scope_out():
                    seen.append(current())
                seen.append(current())
            seen.append(current())
        seen.append(current())
    seen.append(current())
    assert seen == ["outer", None, "outer", "inner", "outer", None]


def test_s11_a_return_and_an_exception_close_the_scope(make):
    ws = make()

    def returns():
        with ws:
            return ws.array([1.0, 2])

    def raises():
        with ws:
            raise KeyError

    array = returns()
    assert current() is None
    assert mc.is_attached(array)
    assert array.tolist() == [1, 2]
    with pytest.raises(KeyError):
        raises()
    assert (current(), ws.is_open) == (None, False)


def test_s12_outside_and_back(make):
    with make() as ws:
        a = ws.array([1.0, 2, 3, 4, 5])
        assert ws.stats().offset == FIVE
        with mc.scope_out():
            b = np.array([1.0, 2, 3, 4, 5])
            assert not mc.is_attached(b)
            assert ws.stats().offset == FIVE
            assert current() is None
        assert mc.workspaces.current_workspace() is ws
        c = ws.empty(5)
        assert ws.stats().offset == 2 * FIVE
        np.add(a, b, out=a)
        assert a.sum() == 30
        del a, c


def test_s13_twenty_threads_have_twenty_default_workspaces():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(mc.workspaces.get_workspace()))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(ws) for ws in found}) == 20
    assert current() is None


def test_s13_the_workspaces_of_threads_go_with_them(pool):
    def work(name):
        config = mc.WorkspaceConfig(initial_size=1_000_000)
        with mc.workspace(name, config, resource=pool) as ws:
            array = np.empty((2, 2))
            assert mc.workspace_of(array) is ws
            del array

    for step in range(10):
        thread = threading.Thread(target=work, args=[f"random name {step}"])
        thread.start()
        thread.join()
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_s14_every_array_is_aligned(make):
    for _ in range(100):
        with make() as ws:
            for count in range(10):
                a = np.linspace(1, 10, 10).reshape(1, 10)
                b = np.empty(count + 1, bool)
                c = a.sum(axis=1, keepdims=True)
                assert mc.workspace_of(b) is ws
                assert [x.ctypes.data % 64 for x in (a, b, c)] == [0, 0, 0]
            del a, b, c


def test_s15_zeros_where_the_cycle_before_wrote(make):
    ws = make(config=BASIC.replace(mirroring="host_only"))
    addresses = set()
    for _ in range(10):
        with ws:
            for a in ws.zeros(4), np.zeros(4):
                with mc.scope_out():
                    assert a.sum() == 0
                    a[:] = 1
                addresses.add(a.ctypes.data)
            del a
    assert len(addresses) == 2
