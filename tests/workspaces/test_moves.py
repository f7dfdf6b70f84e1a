"""Arrays go where they are sent, at most once, whatever they are wrapped in."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.ma  # whose first use inside a scope would leave its constants there
import pytest
from numpy.lib.stride_tricks import as_strided

import memcfg as mc
from memcfg import config, memory
from memcfg.errors import (
    NoSuchWorkspaceError,
    WorkspaceError,
    WorkspaceFullError,
    WorkspaceLeakError,
    WorkspaceLeakWarning,
    WorkspaceStaleError,
)

PAGE = mc.WorkspaceConfig(initial_size=64_000, allocation="strict", learning="none")
REUSED = PAGE.replace(on_escape="invalidate")


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.fixture
def make(pool):
    return lambda name="one", settings=PAGE: mc.workspace(name, settings, resource=pool)


def name_of(array):
    owner = mc.workspace_of(array)
    return None if owner is None else owner.name


MOVES = {
    "detach": mc.detach,
    "leverage": mc.workspaces.leverage,
    "leverage_to": lambda array: mc.workspaces.leverage_to(array, "target"),
    "leverage_or_detach": lambda array: mc.workspaces.leverage_or_detach(
        array, "target"
    ),
    "migrate": mc.workspaces.migrate,
    "migrate, else detach": lambda array: mc.workspaces.migrate(array, detach=True),
}


class TestTargets:
    def test_each_move_has_its_own(self, make):
        with make("target"), make("outer"), make("one") as one:
            a = one.full(5, 3.0)
            assert {name: name_of(move(a)) for name, move in MOVES.items()} == {
                "detach": None,
                "leverage": "outer",
                "leverage_to": "target",
                "leverage_or_detach": "target",
                "migrate": "one",
                "migrate, else detach": "one",
            }
            assert mc.workspaces.migrate(a) is a
            assert mc.workspaces.current_workspace() is one
            with mc.scope_out():
                assert mc.workspaces.migrate(a) is a
                assert name_of(mc.workspaces.migrate(a, detach=True)) is None

    def test_what_is_not_attached_stays_but_for_a_migration(self, make):
        a = np.ones(3)
        with make("target"), make("one"):
            for name, move in MOVES.items():
                assert (move(a) is a) == ("migrate" not in name)
            assert name_of(mc.workspaces.migrate(a)) == "one"
        assert mc.workspaces.migrate(a) is a
        assert mc.workspaces.migrate(a, detach=True) is a

    def test_an_array_that_is_there_stays(self, make):
        with make("target") as target, make("one"):
            a = target.ones(3)
            assert mc.workspaces.leverage_to(a, target) is a
            assert mc.workspaces.leverage_to(a, "target") is a
            assert mc.workspaces.leverage_or_detach(a, "target") is a

    def test_an_array_of_an_earlier_cycle_is_brought_into_this_one(self, make):
        ws = make("one")
        with ws:
            kept = ws.full(4, 2.0)
        with ws:
            moved = mc.workspaces.leverage_to(kept, ws), mc.workspaces.migrate(kept)
            assert [mc.workspaces.is_in_scope(array) for array in (kept, *moved)] == [
                0,
                1,
                1,
            ]
            assert mc.workspaces.generation_of(kept) == 1
            assert [mc.workspaces.generation_of(array) for array in moved] == [2, 2]
            assert all((array == 2).all() for array in moved)

    def test_leverage_without_anything_around_detaches(self, make):
        ws = make("one")
        with ws:
            kept = ws.full(4, 2.0)
            assert name_of(mc.workspaces.leverage(kept)) is None
        assert name_of(mc.workspaces.leverage(kept)) is None
        with make("outer"):
            assert name_of(mc.workspaces.leverage(kept)) is None

    def test_a_target_must_be_open(self, make):
        make("target")
        with make("one") as one:
            a = one.ones(3)
            with pytest.raises(WorkspaceError, match="'target' is not open"):
                mc.workspaces.leverage_to(a, "target")
            assert name_of(mc.workspaces.leverage_or_detach(a, "target")) is None
            assert name_of(mc.workspaces.leverage_or_detach(a, "nobody")) is None

    def test_a_target_must_be_there(self, make):
        make("target")
        a = np.ones(3)
        with pytest.raises(
            NoSuchWorkspaceError, match="'somewhere'; it has 'target'"
        ) as e:
            mc.workspaces.leverage_to(a, "somewhere")
        assert isinstance(e.value, KeyError)
        for move in (mc.workspaces.leverage_to, mc.workspaces.leverage_or_detach):
            with pytest.raises(TypeError, match="workspace or its name"):
                move(a, 7)

    def test_a_full_target_leaves_all_as_it_was(self, make):
        small = PAGE.replace(initial_size=128, spill="fail")
        with make("target", small) as target, make("one") as one:
            a = {"first": one.ones(16), "second": one.ones(1)}
            with pytest.raises(WorkspaceFullError):
                mc.workspaces.leverage_to(a, target)
            assert {name_of(array) for array in a.values()} == {"one"}
            assert mc.workspaces.current_workspace() is one

    def test_detached_arrays_are_of_the_users_own_allocator(self, make):
        other = memory.Pool()
        with memory.numpy_allocator(other), make() as one:
            a = mc.detach(one.ones(3))
            assert memory.owner_of(a) is other
        del a


class TestCopies:
    @pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "u1", "?", "c16", "S3"])
    def test_type_and_values_are_kept(self, make, dtype):
        values = np.arange(24).reshape(2, 3, 4).astype(dtype)
        with make("outer"), make("one") as one:
            a = one.array(values)
            for move in (mc.detach, mc.workspaces.leverage):
                copy = move(a)
                assert copy.dtype == values.dtype
                assert (copy == values).all()
                assert not np.shares_memory(copy, a)

    def test_records_and_objects(self, make):
        with make() as one:
            records = one.zeros(3, [("x", "f4"), ("y", "i2")])
            objects = one.full(2, None, object)
            objects[0] = word = "a word"
            assert mc.detach(records).dtype == records.dtype
            assert mc.detach(objects)[0] is word
            del records, objects

    def test_a_masked_array_takes_its_mask_along(self, make):
        with make():
            a = np.ma.masked_array(np.arange(4.0), mask=[0, 1, 0, 1])
            out = mc.detach(a)
            assert mc.is_attached(a)
            assert mc.is_attached(a.mask)
            assert not mc.is_attached(out)
            assert not mc.is_attached(out.mask)
            assert out.tolist() == [0, None, 2, None]
            del a

    def test_views_are_copied_as_far_as_they_show(self, make):
        with make() as one:
            a = one.array(np.arange(100.0).reshape(10, 10))
            views = {
                "column": a[:, 3],
                "reversed": a[::-1, ::-1],
                "transposed": a.T,
                "window": as_strided(a, (3, 2), (8, 80)),
                "scalar": a[2, 3, ...],
                "bytes": np.asarray(memoryview(a)),
            }
            for name, view in views.items():
                assert mc.is_attached(view), name
                copy = mc.detach(view)
                assert not mc.is_attached(copy), name
                assert copy.flags.owndata, name
                assert copy.nbytes == view.size * 8, name
                assert (copy == view).all(), name
            assert mc.detach(views["transposed"]).flags.f_contiguous
            assert mc.detach(views["column"]).flags.c_contiguous
            del a, views, view

    def test_a_copy_can_be_written(self, make):
        with make() as one:
            a = one.ones(3)
            a.flags.writeable = False
            assert mc.detach(a).flags.writeable
            del a

    def test_one_request_for_one_array(self, make):
        with make("outer") as outer, make("one") as one:
            a = one.ones((5, 5))[1:3]
            before = outer.stats().offset
            mc.workspaces.leverage(a)
            assert outer.stats().offset - before == 128
            del a


class TestContainers:
    def test_all_kinds_nested(self, make):
        outside = np.ones(1)
        with make() as one:
            a, b = one.ones(2), one.zeros(3)
            value = {
                "list": [a, (b, "text", None)],
                "pair": Pair(a, {"deep": [b, 1.5]}),
                7: outside,
            }
            out = mc.detach(value)
            assert out.keys() == value.keys()
            assert type(out["pair"]) is Pair
            assert out["pair"].y["deep"][1] == 1.5
            assert out["list"][1][1:] == ("text", None)
            assert out[7] is outside
            found = [out["list"][0], out["list"][1][0], out["pair"].y["deep"][0]]
            assert not any(mc.is_attached(array) for array in found)
            assert value["list"][0] is a
            assert out["list"] is not value["list"]
            del a, b, value

    def test_an_array_that_is_in_there_twice_is_copied_once(self, make):
        with make() as one:
            a = one.ones(3)
            first, second = mc.detach([a, {"x": a}])
            assert second["x"] is first
            del a

    def test_subclasses_are_kept(self, make):
        class Stack(list):
            note = "kept"

        with make() as one:
            a = one.ones(2)
            ordered = OrderedDict(z=a, a=1)
            default = defaultdict(list, x=a)
            stack = Stack([a])
            stack.note = "mine"
            out = mc.detach((ordered, default, stack))
            assert [type(each) for each in out] == [OrderedDict, defaultdict, Stack]
            assert list(out[0]) == ["z", "a"]
            assert out[1].default_factory is list
            assert out[2].note == "mine"
            assert not mc.is_attached(out[2][0])
            assert mc.is_attached(stack[0])
            del a, ordered, default, stack

    def test_numbers_go_through(self, make):
        with make():
            total = np.ones(3).sum()
        assert mc.detach(total) == 3
        assert mc.detach([]) == []
        assert mc.workspaces.migrate({}) == {}

    @pytest.mark.parametrize("value", [None, 3, "text", {1}, object()])
    def test_anything_else_is_refused(self, make, value):
        make("target")
        for move in MOVES.values():
            with pytest.raises(TypeError, match="an array is needed"):
                move(value)


class TestQuestions:
    def test_of_an_array_in_none(self):
        a = np.ones(3)
        assert not mc.is_attached(a)
        assert mc.workspaces.is_valid(a)
        assert mc.workspaces.is_in_scope(a)
        assert mc.workspace_of(a) is None
        assert mc.workspaces.generation_of(a) is None

    def test_of_an_array_that_stays_behind(self, make):
        ws = make()
        with ws:
            a = ws.ones(3)
            assert mc.workspaces.is_in_scope(a[1:])
            assert mc.workspace_of(a.reshape(3, 1)) is ws
        for _ in range(2):
            assert mc.is_attached(a)
            assert mc.workspaces.is_valid(a)
            assert not mc.workspaces.is_in_scope(a)
            assert mc.workspaces.generation_of(a) == 1
            with ws:
                assert not mc.workspaces.is_in_scope(a)

    @pytest.mark.parametrize(
        "ask",
        [
            *(
                mc.is_attached,
                mc.workspaces.is_valid,
                mc.workspaces.is_in_scope,
                mc.workspace_of,
            ),
            mc.workspaces.generation_of,
        ],
    )
    def test_of_what_is_no_array(self, ask):
        with pytest.raises(TypeError, match="not an array"):
            ask([1, 2])


class TestValidity:
    @pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
    def test_a_lost_array_is_not_moved(self, make, move):
        ws = make("one", REUSED)
        with make("target") as target:
            with ws:
                a = ws.ones(3)
            with pytest.raises(WorkspaceLeakError) as closed:
                move([a])
            assert not mc.workspaces.is_valid(a)
            with ws, pytest.raises(WorkspaceStaleError) as later:
                move(a)
            assert target.stats().offset == 0
        assert "of cycle 1 of workspace 'one', which is closed" in str(closed.value)
        assert "of cycle 1 of workspace 'one', which is in cycle 2" in str(later.value)
        for error in (closed, later):
            assert "Call memcfg.detach(x) inside the with block" in str(error.value)

    def test_checks_can_warn_or_be_off(self, make):
        ws = make("one", REUSED)
        with ws:
            a = ws.ones(3)
        config.set_scope_checks("warn")
        with pytest.warns(WorkspaceLeakWarning, match="cannot detach it") as caught:
            assert (mc.detach({"x": [a]})["x"][0] == 1).all()
        assert caught[0].filename == __file__
        config.set_scope_checks("off")
        assert not mc.is_attached(mc.detach(a))
        assert not mc.workspaces.is_valid(a)

    @pytest.mark.parametrize("policy", ["retire", "warn", "error"])
    def test_nothing_else_is_ever_lost(self, make, policy):
        ws = make("one", PAGE.replace(on_escape=policy))
        kept = []
        for number in range(5):
            try:
                with ws:
                    kept.append(ws.full(100, number))
            except WorkspaceLeakError:
                pass
            except WorkspaceLeakWarning:
                pass
        for number, array in enumerate(kept):
            assert mc.workspaces.is_valid(array)
            assert (mc.detach(array) == number).all()

    def test_a_ring_loses_what_it_has_come_round_to(self, make):
        ring = make(
            "ring",
            REUSED.replace(
                reset="end_of_buffer", allocation="overallocate", overallocation=3
            ).replace(initial_size=8000),
        )
        kept = []
        for _ in range(6):
            with ring:
                kept.append(ring.ones(1000))
        assert [mc.workspaces.is_valid(array) for array in kept] == [0, 0, 1, 1, 1, 1]
        assert not mc.is_attached(mc.detach(kept[2]))
        with pytest.raises(WorkspaceLeakError, match="cycle 1 of workspace 'ring'"):
            mc.detach(kept[0])
