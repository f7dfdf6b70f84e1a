"""Workspaces by name: made once a thread, found again, refused as duplicates, ended."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import memcfg as mc
from memcfg import config, memory
from memcfg.errors import (
    ResourceExhaustedError,
    WorkspaceConfigError,
    WorkspaceError,
    WorkspaceFullError,
    WorkspaceSpillWarning,
)
from memcfg.workspaces import OwnedWorkspace

PAGE = mc.WorkspaceConfig(initial_size=64_000, allocation="strict", learning="none")


def in_a_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_name_is_one_workspace_of_the_thread(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)
    assert mc.workspace("loop") is ws
    assert mc.workspaces.get_workspace("loop", PAGE, resource=pool) is ws
    assert mc.workspace("loop", PAGE.replace()) is ws
    assert (ws.name, ws.config, ws.resource) == ("loop", PAGE, pool)
    assert ws.thread_id == threading.get_ident()
    assert mc.workspace("other", resource=pool) is not ws


def test_a_configuration_is_one(pool):
    mc.workspace("loop", PAGE, resource=pool)
    with pytest.raises(TypeError, match="is a WorkspaceConfig or None"):
        mc.workspace("loop", {"initial_size": 1})
    with pytest.raises(TypeError, match="detach is True or False"):
        mc.workspaces.migrate(np.ones(3), detach="x")
    with pytest.raises(TypeError, match="neither an array nor a container"):
        mc.testing.assert_valid(3)


def test_the_default_name(pool):
    ws = mc.workspace(resource=pool)
    assert ws.name == "DefaultWorkspace"
    assert mc.workspaces.get_workspace() is ws
    with pytest.raises(
        WorkspaceConfigError, match=r"already has .* 'DefaultWorkspace'"
    ):
        mc.Workspace()


def test_a_conflict_names_what_differs(pool):
    mc.workspace("loop", PAGE, resource=pool)
    with pytest.raises(WorkspaceConfigError) as caught:
        mc.workspace("loop", PAGE.replace(spill="fail", min_size=64))
    assert str(caught.value) == (
        "workspace 'loop' has another configuration: min_size=0, not 64, "
        "spill='external', not 'fail'. Leave the configuration out, or call "
        "memcfg.workspace('loop').destroy() first."
    )
    with pytest.raises(WorkspaceConfigError, match="Leave the resource out"):
        mc.workspace("loop", resource=memory.Pool())
    assert mc.workspace("loop").config is PAGE


def test_a_used_name_makes_no_second_one(pool):
    first = mc.workspace("loop", PAGE, resource=pool)
    with pytest.raises(WorkspaceConfigError, match="already has a workspace 'loop'"):
        mc.Workspace(PAGE, "loop", resource=pool)
    assert pool.owners() == {"workspace loop": 64_000}
    first.destroy()
    assert mc.Workspace(PAGE, "loop", resource=pool) is mc.workspace("loop")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": 7}, TypeError),
        ({"name": ""}, ValueError),
        ({"config": {}}, TypeError),
        ({"resource": "pool"}, TypeError),
        ({"resource": memory.simulated("1MiB")}, ValueError),
    ],
)
def test_wrong_arguments_make_nothing(arguments, error):
    before = mc.list_workspaces()
    with pytest.raises(error):
        mc.Workspace(**arguments)
    with pytest.raises(error):
        mc.workspace(**arguments)
    assert mc.list_workspaces() == before


def test_a_page_that_does_not_fit_makes_nothing(pool):
    small = memory.Pool(limit="63KiB")
    with pytest.raises(ResourceExhaustedError):
        mc.workspace("loop", PAGE.replace(initial_size="64KiB"), resource=small)
    assert not mc.workspaces.workspace_exists("loop")
    assert small.owners() == {}
    with mc.workspace("loop", PAGE, resource=pool):
        pass


def test_memory_is_of_the_current_device():
    cpu = config.list_physical_devices("CPU")[0]
    config.set_logical_device_configuration(
        cpu, [config.LogicalDeviceConfiguration(memory_limit=n) for n in (1, 2)]
    )
    first = mc.workspace("first", PAGE)
    with mc.device("CPU:1"):
        second = mc.workspace("second", PAGE)
        assert mc.workspace("first") is first
    for ws, name in ((first, "CPU:0"), (second, "CPU:1")):
        assert ws.resource is config.logical_device(name).pool
        assert config.get_memory_usage(name) == 64_000
        ws.destroy()
        assert config.get_memory_usage(name) == 0


def test_a_workspace_of_a_dropped_device_is_replaced():
    old = mc.workspace("loop")
    other = mc.workspace("open")
    with other:
        config.reset()
        config.set_logical_device_configuration(
            config.list_physical_devices("CPU")[0],
            [config.LogicalDeviceConfiguration(memory_limit=1)],
        )
        new = mc.workspace("loop")
        assert mc.workspace("open") is other
    assert new is not old
    assert new.resource is config.logical_device(None).pool
    assert new.resource.limit == 2**20
    assert mc.workspace("loop") is new
    assert mc.list_workspaces() == [other, new]


def test_exists_and_list(pool):
    assert mc.list_workspaces() == []
    assert not mc.workspaces.workspace_exists("one")
    one = mc.workspace("one", resource=pool)
    two = mc.workspace("two", resource=pool)
    assert mc.list_workspaces() == [one, two]
    assert mc.workspaces.workspace_exists("one")
    assert not mc.workspaces.workspace_exists("one", is_open=True)
    with one:
        assert mc.workspaces.workspace_exists("one", is_open=True)
    assert in_a_thread(
        lambda: (mc.list_workspaces(), mc.workspaces.workspace_exists("one"))
    ) == (
        [],
        False,
    )


def test_destroy_forgets_everything_but_the_object(pool):
    ws = mc.workspace("loop", resource=pool)
    with ws:
        ws.empty(1000)
    assert ws.stats().size > 0
    ws.destroy()
    assert pool.owners() == {}
    assert not mc.workspaces.workspace_exists("loop")
    nothing = dict.fromkeys(mc.workspaces.WorkspaceStats.__slots__, 0)
    assert replace(ws.stats(), generation=0) == mc.workspaces.WorkspaceStats(**nothing)
    new = mc.workspace("loop", PAGE, resource=pool)
    ws.destroy()  # again, and the name is another one's
    assert mc.workspace("loop") is new
    with ws:
        ws.empty(10)
    assert ws.stats().max_cycle_bytes == 128


def test_destroy_all_closes_what_is_open(pool):
    one = mc.workspace("one", PAGE, resource=pool).open()
    two = mc.workspace("two", PAGE, resource=pool).open()
    kept = two.full(10, 7.0)
    mc.destroy_all_workspaces()
    assert mc.workspaces.current_workspace() is None
    assert not one.is_open
    assert not two.is_open
    assert mc.list_workspaces() == []
    assert (kept == 7).all()
    assert list(pool.owners()) == ["workspace two"]
    del kept
    assert pool.owners() == {}
    assert not mc.is_attached(np.ones(3))


def test_destroy_all_of_all_threads(pool):
    ready, go = threading.Event(), threading.Event()
    result = []

    def work():
        ws = mc.workspace("there", PAGE, resource=pool)
        ready.set()
        go.wait(10)
        result.extend([mc.workspaces.workspace_exists("there"), ws.stats().size])
        with ws:
            result.append(mc.is_attached(np.empty(4)))

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    mc.workspace("here", PAGE, resource=pool)
    mc.destroy_all_workspaces()
    assert list(pool.owners()) == ["workspace there"]
    mc.destroy_all_workspaces(thread="all")
    assert pool.owners() == {}
    go.set()
    thread.join()
    assert result == [False, 0, True]
    with pytest.raises(ValueError, match="'current' or 'all', not 'none'"):
        mc.destroy_all_workspaces(thread="none")


def test_an_open_workspace_of_another_thread_is_left_alone(pool):
    ready, go = threading.Event(), threading.Event()
    other = []

    def work():
        with mc.workspace("there", PAGE, resource=pool) as ws:
            other.append(ws)
            ready.set()
            go.wait(10)
            assert mc.is_attached(np.empty(3))

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    here = mc.workspace("here", PAGE, resource=pool)
    try:
        with pytest.raises(WorkspaceError, match=f"'there' of thread {thread.ident}"):
            mc.destroy_all_workspaces(thread="all")
        with pytest.raises(WorkspaceError, match="open in another thread"):
            other[0].destroy()
        assert mc.list_workspaces() == [here]
        assert here.stats().size == 64_000
    finally:
        go.set()
        thread.join()


def test_summary_is_a_line_for_each(pool):
    assert mc.workspaces.summary() == "No workspaces of this thread"
    ring = mc.RingWorkspace(2, PAGE.replace(initial_size=640), "ring", resource=pool)
    loop = mc.workspace("loop", resource=pool)
    with loop:
        loop.empty(10)
        assert mc.workspaces.summary() == (
            "2 workspaces of this thread\n"
            "ring: closed, 0 cycles; page 1.25 KiB (1280 B), spilled 0 B, pinned 0 B\n"
            "loop: open, 0 cycles; page 0 B, spilled 128 B, pinned 0 B"
        )
    ring.destroy()
    assert mc.workspaces.summary() == (
        "1 workspace of this thread\n"
        "loop: closed, 1 cycle; page 166 B, spilled 128 B, pinned 0 B"
    )


def test_statistics_are_a_value(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)
    with ws:
        before = ws.stats()
        kept = ws.empty(9)
        assert ws.stats() == replace(before, offset=128, cycle_bytes=128, live_arrays=1)
    after = ws.stats()
    assert (after.escaped_arrays, after.live_arrays) == (1, 1)
    assert after.retired_bytes > 0
    with pytest.raises(AttributeError):
        after.size = 1
    del kept
    assert (ws.stats().escaped_arrays, ws.stats().live_arrays) == (1, 0)
    assert ws.stats().retired_bytes == 0


def test_what_a_workspace_says_of_itself(pool):
    ws = mc.workspace("loop", PAGE, resource=pool)
    assert repr(ws) == "<Workspace 'loop', closed, 62.50 KiB>"
    with ws:
        assert repr(ws) == "<Workspace 'loop', open, 62.50 KiB>"
    assert repr(mc.RingWorkspace(2, resource=pool)).startswith("<RingWorkspace")


def test_arrays_are_made_in_it_whatever_is_current(pool):
    one = mc.workspace("one", PAGE, resource=pool)
    two = mc.workspace("two", PAGE, resource=pool)
    prototype = np.asfortranarray(np.ones((2, 3), np.int16))
    with one, two:
        made = {
            "empty": one.empty((2, 3)),
            "zeros": one.zeros(3, np.int8),
            "ones": one.ones((2, 2), "f4"),
            "full": one.full(4, 2.5),
            "row": one.full((2, 3), [1, 2, 3]),
            "array": one.array([[1, 2], [3, 4]], float),
            "copy": one.array(prototype),
            "like": one.empty_like(prototype, np.float32),
            "bytes": np.asarray(one.alloc(100)),
        }
        assert mc.workspaces.current_workspace() is two
        assert {mc.workspace_of(array) for array in made.values()} == {one}
        assert one.stats().live_arrays == one.stats().offset // 64 - 1 == 9
        assert two.stats().offset == 0
        assert (made["zeros"] == 0).all()
        assert (made["ones"] == 1).all()
        assert (made["full"] == 2.5).all()
        assert made["row"].tolist() == [[1, 2, 3]] * 2
        assert made["array"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert made["copy"].flags.f_contiguous
        assert made["copy"].dtype == np.int16
        assert made["like"].flags.f_contiguous
        assert made["like"].dtype == np.float32
        del made


def test_values_that_do_not_fit_are_refused(pool):
    with mc.workspace("one", PAGE, resource=pool) as ws:
        with pytest.raises(OverflowError):
            ws.full(3, 300, np.uint8)
        with pytest.raises(ValueError, match="broadcast"):
            ws.full((2, 3), [1, 2])
        with pytest.raises(ValueError, match="at least 1"):
            ws.alloc(0)
        with pytest.raises(TypeError):
            ws.alloc(1.5)


def test_bytes_keep_their_place(pool):
    ws = mc.workspace("one", PAGE, resource=pool)
    with ws:
        view = ws.alloc(5)
        view[:] = b"hello"
    with ws:
        ws.zeros(1000)
    assert bytes(view) == b"hello"
    assert (view.readonly, view.format, ws.stats().escaped_arrays) == (False, "B", 1)


def test_a_closed_or_disabled_workspace_makes_them_outside(pool):
    ws = mc.workspace("one", PAGE, resource=pool)
    outside = ws.full(10, 1.0)
    assert not mc.is_attached(outside)
    assert memory.owner_of(outside) is pool
    with ws:
        with ws.disabled() as same:
            assert same is ws
            assert not ws.enabled
            bypassed = ws.zeros(10), np.zeros(10)
            assert mc.workspaces.current_workspace() is ws
        assert ws.enabled
        assert [mc.is_attached(array) for array in bypassed] == [False, False]
        assert ws.stats().offset == 0
        assert mc.is_attached(ws.zeros(10))
        with pytest.raises(KeyError), ws.disabled():
            raise KeyError
        assert ws.enabled
    del outside, bypassed


def test_a_workspace_left_disabled_is_enabled_again(pool):
    ws = mc.workspace("one", PAGE, resource=pool)
    with pytest.warns(WorkspaceSpillWarning, match="'one' was left") as caught, ws:
        ws.enabled = False
    assert caught[0].filename == __file__
    with ws:
        assert mc.is_attached(np.empty(3))


def test_a_full_workspace_says_so_at_once(pool):
    ws = mc.workspace("one", PAGE.replace(spill="fail"), resource=pool)
    with ws:
        with pytest.raises(WorkspaceFullError) as caught:
            ws.empty(10_000)
        assert caught.value.requested_bytes == 80_000
        assert ws.empty(10).nbytes == 80


def test_a_page_that_cannot_be_had_is_told_once():
    small = memory.Pool(limit="64KiB")
    ws = mc.workspace("one", resource=small)
    with ws:
        ws.empty(7000)
    with pytest.warns(
        WorkspaceSpillWarning, match="cannot have its page of 71"
    ) as seen:
        ws.open()
    assert mc.is_attached(ws.empty(3000))
    ws.close()
    with ws:
        pass  # a second warning would be an error
    assert len(seen) == 1
    assert seen[0].filename == __file__
    ws.destroy()


def test_no_capture_leaves_numpy_alone(pool):
    ws = mc.workspace("one", PAGE.replace(capture_numpy=False), resource=pool)
    with ws:
        assert mc.workspaces.current_workspace() is ws
        assert not mc.is_attached(np.empty(3))
        assert mc.workspace_of(ws.empty(3)) is ws
        assert mc.workspace_of(mc.workspaces.migrate(np.empty(3))) is ws


def test_only_a_workspace_in_a_file_is_flushed(pool, tmp_path):
    with pytest.raises(WorkspaceError, match="'one' has no file"):
        mc.workspace("one", PAGE, resource=pool).flush()
    path = tmp_path / "page"
    settings = PAGE.replace(location="mmap", path=path)
    ws = mc.workspace("file", settings, resource=pool)
    with ws:
        ws.full(3, 7.0)
    ws.flush()
    assert np.fromfile(path)[:3].tolist() == [7.0] * 3
    ws.destroy()
    with pytest.raises(WorkspaceError, match="'file' has no file"):
        ws.flush()


def test_a_file_of_another_length_says_what_to_do(pool, tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(WorkspaceConfigError, match=r"workspace 'file'.*overwrite=True"):
        mc.workspace("file", PAGE.replace(location="mmap", path=path), resource=pool)
    assert path.read_bytes() == b"x" * 100_000
    empty = tmp_path / "empty"
    empty.touch()
    settings = PAGE.replace(location="mmap", path=empty, initial_size=0)
    with pytest.raises(WorkspaceConfigError, match="workspace 'file'"):
        mc.workspace("file", settings, resource=pool)
    with pytest.raises(FileNotFoundError):
        mc.workspace(
            "file", settings.replace(path=tmp_path / "no" / "x", initial_size=9)
        )
    assert not mc.workspaces.workspace_exists("file")


def test_arrays_outlive_a_destroyed_file(pool, tmp_path):
    path = tmp_path / "page"
    settings = PAGE.replace(location="mmap", path=path)
    ws = mc.workspace("file", settings, resource=pool)
    with ws:
        kept = ws.full(100, 3.0)
    ws.destroy()
    path.unlink()
    assert (kept == 3).all()
    del kept, ws
    gc.collect()
    again = mc.workspace("file", settings, resource=pool)
    assert path.stat().st_size == 64_000
    again.destroy()


def test_a_workspace_goes_when_it_is_destroyed_and_forgotten(pool):
    ws = mc.workspace("one", PAGE, resource=pool)
    known = weakref.ref(ws)
    del ws
    assert known() is mc.workspace("one")
    mc.workspace("one").destroy()
    assert known() is None


class TestRing:
    def test_it_is_a_configuration(self, pool):
        ring = mc.RingWorkspace(slots=4, name="ring", resource=pool)
        assert ring.slots == 4
        assert ring.config == mc.WorkspaceConfig(
            reset="end_of_buffer", overallocation=3
        )
        assert mc.workspace("ring") is ring

    @pytest.mark.parametrize("slots", [1, 0, -2])
    def test_it_has_two_slots_at_least(self, slots):
        with pytest.raises(WorkspaceConfigError, match="at least 2 slots"):
            mc.RingWorkspace(slots)
        with pytest.raises(TypeError, match=r"slots is an integer, not 2\.0"):
            mc.RingWorkspace(2.0)
        with pytest.raises(TypeError):
            mc.RingWorkspace(2, {})
        assert mc.list_workspaces() == []

    def test_batches_are_there_for_as_long_as_it_has_slots(self, pool):
        ring = mc.RingWorkspace(slots=3, resource=pool)
        batches = []
        for number in range(30):
            with ring:
                batches.append(ring.full(1000, number))
            assert [batch[0] for batch in batches] == list(range(number + 1))[-3:]
            assert all((batch == batch[0]).all() for batch in batches)
            if len(batches) == 3:
                del batches[0]
            if number > 3:
                assert ring.stats().retired_bytes == 0
        assert ring.stats().size == 3 * ring.stats().block_size


def step_and_fail(act, steps):
    for _ in range(steps):
        act.turn()
    raise KeyError


class TestPingPong:
    def test_the_last_turn_is_there_in_the_next(self, pool):
        act = mc.workspaces.PingPong("act", PAGE, resource=pool)
        first, second = act.workspaces
        assert (first.name, second.name) == ("act_1", "act_2")
        for _ in range(2):
            x = np.ones(100)
            with act:
                for step in range(1, 9):
                    ws = act.turn()
                    assert (
                        ws
                        is mc.workspaces.current_workspace()
                        is act.workspaces[(step - 1) % 2]
                    )
                    before, x = x, ws.full(100, x[0] + 1)
                    assert (before == step).all()
                    assert (x == step + 1).all()
                    del before
                    assert ws.stats().live_arrays == 1
                x = mc.detach(x)
            assert mc.workspaces.current_workspace() is None
            assert not first.is_open
            assert not second.is_open
            assert x[0] == 9
        assert pool.stats().current_bytes == 128_000  # no third page
        act.destroy()
        assert mc.list_workspaces() == []
        assert pool.owners() == {}

    @pytest.mark.parametrize("steps", [0, 1, 2, 3])
    def test_an_exception_closes_both(self, pool, steps):
        act = mc.workspaces.PingPong("act", resource=pool)
        outer = mc.workspace("outer", resource=pool)
        with outer:
            with pytest.raises(KeyError), act:
                step_and_fail(act, steps)
            assert mc.workspaces.current_workspace() is outer
            assert not any(ws.is_open for ws in act.workspaces)

    def test_a_turn_begins_inside_only(self, pool):
        act = mc.workspaces.PingPong("act", resource=pool)
        with pytest.raises(WorkspaceError, match="inside"):
            act.turn()
        with act:
            with pytest.raises(WorkspaceError, match="already entered"), act:
                pass
            act.turn()

    def test_what_cannot_be_two_is_refused(self, pool, tmp_path):
        ring = mc.WorkspaceConfig(reset="end_of_buffer", overallocation=2)
        file = PAGE.replace(location="mmap", path=tmp_path / "x")
        for settings in (ring, file):
            with pytest.raises(WorkspaceConfigError, match="its own memory"):
                mc.workspaces.PingPong("act", settings, resource=pool)
        mc.workspace("act_2", resource=pool)
        with pytest.raises(WorkspaceConfigError, match="act_2"):
            mc.workspaces.PingPong("act", resource=pool)
        assert not mc.workspaces.workspace_exists("act_1")


def test_a_workspace_of_an_object_is_in_no_list(pool):
    first = mc.workspace("loop", PAGE, resource=pool)
    owned = [OwnedWorkspace(PAGE, "loop", resource=pool) for _ in range(2)]
    assert mc.list_workspaces() == [first]
    mc.destroy_all_workspaces(thread="all")
    assert pool.owners() == {"workspace loop": 128_000}
    in_a_thread(owned[0].open)
    assert owned[0].is_open
    owned[0].destroy()
    assert pool.owners() == {"workspace loop": 64_000}
    known = weakref.ref(owned[1])
    owned.clear()
    assert known() is None
    assert pool.owners() == {}
