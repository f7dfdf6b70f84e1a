"""Who holds what: every block once, by whom, and which resources are alive."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import pytest
from busy import random_user, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import live_arenas, live_resources
from resources import MAKERS
from terminal_columns import LETTERS, columns

from memcfg import memory
from memcfg.memory import LiveBlock
from memcfg.units import align_up

MIB = 2**20


def held(*resources, **options) -> list[tuple[str, int]]:
    return [(each.tag, each.nbytes) for each in memory.list_live(*resources, **options)]


def test_the_largest_come_first_and_equal_ones_by_address():
    pool = memory.Pool(limit="64MiB", name="scratch")
    sizes = [100, 3000, 70_000, 3000, 64]
    blocks = [pool.allocate(size, tag=f"t{size}") for size in sizes]
    live = memory.list_live(pool)
    assert [each.nbytes for each in live] == [70_000, 3000, 3000, 100, 64]
    assert [each.rounded_bytes for each in live] == [70_016, 3008, 3008, 128, 64]
    assert live[1].address < live[2].address
    assert {each.address for each in live} == {each.address for each in blocks}
    assert live[0] == LiveBlock("scratch", blocks[2].address, 70_000, 70_016, "t70000")
    assert {each.kind for each in live} == {"block"}
    assert memory.list_live(pool, top=2) == live[:2]
    assert memory.list_live(pool, top=None) == live
    blocks[2].free()
    assert len(memory.list_live(pool, top=100)) == 4


def test_what_a_thread_keeps_is_not_listed():
    pool = memory.Pool(limit="64MiB")
    for block in [pool.allocate(512) for _ in range(16)]:
        block.free()
    assert "x" in pool.occupancy(100_000)
    assert memory.list_live(pool) == []


def test_an_arena_is_one_block_of_its_tag():
    pool = memory.Pool(limit="64MiB", name="scratch")
    block = pool.allocate(5000, tag="small")
    arena = pool.arena(MIB, tag="model")
    assert held(pool) == [("small", 5000)]  # of no bytes
    arena.grow(100_001)
    row = memory.list_live(pool)[0]
    assert (row.tag, row.nbytes, row.rounded_bytes) == ("model", 100_001, 100_032)
    assert (row.kind, row.address, row.resource) == ("arena", arena.address, "scratch")
    assert "arena at" in str(row)
    arena.shrink(70)
    assert held(pool) == [("small", 5000), ("model", 70)]
    assert pool.stats().requested_bytes == 5070
    # An adaptor without metadata says what the resource below says.
    assert held(memory.failure_callback(pool, lambda _: False)) == held(pool)
    assert held(memory.limiting(pool, None)) == []
    arena.free()
    assert held(pool) == [("small", 5000)]
    block.free()


def test_a_block_that_went_through_adaptors_is_listed_once():
    pool = memory.Pool(limit="64MiB", name="scratch")
    limited = memory.limiting(pool, "32MiB")
    counted = memory.statistics(limited)
    asking = memory.failure_callback(counted, lambda _: False)
    blocks = [
        resource.allocate(size, tag="t")
        for size, resource in enumerate((pool, limited, counted, asking), 1000)
    ]
    assert [n for _, n in held(pool)] == [1003, 1002, 1001, 1000]
    assert [n for _, n in held(limited)] == [1003, 1002, 1001]
    assert [n for _, n in held(counted)] == [1003, 1002]
    assert held(asking) == held(counted)
    for chosen in ([pool, counted], [counted, pool, limited], [pool, pool, asking]):
        assert held(*chosen) == held(pool)
    assert held(asking, counted) == held(counted)
    assert memory.list_live(asking)[0].resource == "scratch"
    siblings = memory.limiting(pool, None), memory.limiting(pool, None)
    blocks += [resource.allocate(64) for resource in siblings]
    assert len(memory.list_live(*siblings)) == 2
    del blocks


def test_a_pools_segments_are_not_blocks_of_what_is_below():
    system = memory.system("below")
    limited = memory.limiting(system, "64MiB")
    pool = memory.Pool(limited, name="middle")
    top = memory.Pool(pool, name="top")
    block = top.allocate(1000, tag="mine")
    other = system.allocate(500, tag="pool")  # the tag of segments, and no segment
    assert held(system, pool, top) == held(top, system, pool)
    assert held(system, pool, top) == [("mine", 1000), ("pool", 500)]
    assert held(limited, pool, top) == [("mine", 1000)]
    # Asked for alone, a resource lists what it has given out.
    assert len(held(system)) == 2
    assert sum(n for _, n in held(system)) == system.stats().requested_bytes
    assert [tag for tag, _ in held(pool)] == ["pool"]
    assert held(pool, top) == held(top)
    block.free()
    other.free()


def test_nothing_named_is_everything_alive():
    before = held(top=None)
    pool = memory.Pool(limit="64MiB", name="scratch")
    device = memory.simulated("1GiB", name="GPU:0")
    counted = memory.statistics(memory.system("system"))
    on_device = memory.Pool(device, name="on GPU:0")
    on_blocks = memory.Pool(counted, name="on blocks")
    blocks = [
        resource.allocate(size, tag=resource.name)
        for size, resource in enumerate(
            (pool, device, counted, on_device, on_blocks), 10**6
        )
    ]
    arena = on_device.arena(MIB, tag="model")
    arena.grow(77)
    now = held(top=None)
    for row in before:
        now.remove(row)
    assert sorted(now) == sorted(
        [("model", 77), *((block.tag, block.requested) for block in blocks)]
    )


def test_an_unnamed_resource_is_called_what_it_is():
    resources = [make() for make in MAKERS.values()]
    for resource in resources:
        with resource.allocate(100) as block:
            row = memory.list_live(resource)[0]
            assert row.address == block.address
            assert row.resource in (resource.name, "system", "pool")
            assert row.resource
    assert memory.list_live(*resources) == []


@pytest.mark.parametrize("bad", [0, -1])
def test_a_list_of_no_blocks_is_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        memory.list_live(top=bad)


@pytest.mark.parametrize("bad", [1.5, "all", True, [3]])
def test_a_length_is_a_number(bad):
    with pytest.raises(TypeError, match="top"):
        memory.list_live(top=bad)


@pytest.mark.parametrize("bad", [None, "CPU:0", 3, memory.Pool])
@pytest.mark.parametrize("report", ["list_live", "summary", "occupancy"])
def test_only_resources_are_reported_on(report, bad):
    with pytest.raises(TypeError, match="resources"):
        getattr(memory, report)(memory.system(), bad)


class TestLine:
    def line(self, **fields) -> str:
        values = {
            "resource": "CPU:0",
            "address": 0x7F0000001000,
            "nbytes": 3 * MIB,
            "rounded_bytes": 3 * MIB,
            "tag": "weights",
        }
        return str(LiveBlock(**values | fields))

    def test_it_tells_what_there_is(self):
        text = self.line(
            seconds=75.0,
            stack=(("/home/me/model.py", 12, "build"), ("main.py", 3, "run")),
        )
        assert text.split() == [
            *("3.00", "MiB", "weights", "CPU:0", "1", "m", "model.py:12", "build")
        ]
        assert self.line(tag="").split()[2:] == [
            "unnamed",
            "CPU:0",
            "block",
            "at",
            "0x7f0000001000",
        ]

    def test_a_call_shows_its_line_whatever_its_names(self):
        def text(filename, function):
            return self.line(stack=((filename, 12, function),)).split(maxsplit=4)[4]

        assert text("model.py", "build.<locals>.layer") == "model.py:12 build.layer"
        assert text("/x/" + "m" * 30 + ".py", "f") == "…" + "m" * 11 + ".py:12 f"
        assert text("model.py", "f" * 30) == "model.py:12 " + "f" * 15 + "…"

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (0.0, "0.0 s"),
            (9.94, "9.9 s"),
            (9.96, "10 s"),
            (59.4, "59 s"),
            (59.6, "1 m"),
            (3600 * 1.6, "2 h"),
            (3575.0, "1 h"),
            (86400 * 0.99, "1 d"),
            (86400 * 3, "3 d"),
        ],
    )
    def test_an_age_is_short(self, seconds, words):
        assert self.line(seconds=seconds).endswith(f" {words} block at 0x7f0000001000")

    def test_control_characters_are_codes(self):
        text = self.line(tag="a\x1b[31m\nb\t", resource="\u202etxt")
        assert text.isprintable()
        assert r"a\x1b[31m\nb\t" in text
        assert r"\u202etxt" in text

    @given(
        tag=st.text(LETTERS),
        resource=st.text(LETTERS),
        nbytes=st.integers(1, 2**60),
        seconds=st.none() | st.floats(0, 1e9),
        stack=st.lists(
            st.tuples(st.text(LETTERS), st.integers(1, 10**6), st.text(LETTERS)),
            max_size=2,
        ).map(tuple),
    )
    def test_it_is_one_line_of_a_terminal(self, **fields):
        text = self.line(**fields)
        assert text.isprintable()
        assert columns(text) <= 80


SIZES = st.integers(1, 10_000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 5), SIZES, st.sampled_from("abc")),
        st.tuples(st.just("free"), st.integers(0, 100)),
        st.tuples(st.just("arena"), st.integers(0, 1), SIZES),
        st.tuples(st.just("shrink"), st.integers(0, 100), SIZES),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_the_list_agrees_with_a_model(steps):
    """All blocks, by tag: what the program holds; and per resource, what stats say."""
    system = memory.system("system")
    pool = memory.Pool(limit="1GiB", name="pool")
    limited = memory.limiting(pool, None)
    above = memory.Pool(memory.limiting(system, None), name="above")
    device = memory.Pool(memory.simulated("1GiB"), name="device")
    asking = memory.failure_callback(limited, lambda _: False)
    takers = system, pool, limited, above, device, asking
    bases = system, pool, above, device
    blocks, arenas, sizes = [], [], []
    for kind, which, *rest in steps:
        if kind == "take":
            blocks.append(takers[which].allocate(rest[0], tag=rest[1]))
        elif kind == "free" and blocks:
            blocks.pop(which % len(blocks)).free()
        elif kind == "arena":
            arenas.append((pool, device)[which].arena(2**20, tag="arena"))
            arenas[-1].grow(rest[0])
            sizes.append(rest[0])
        elif kind == "shrink" and arenas:
            which %= len(arenas)
            arenas[which].shrink(rest[0])
            sizes[which] = min(sizes[which], rest[0])
    expected = [(block.tag, block.requested) for block in blocks]
    expected += [("arena", size) for size in sizes if size > 0]
    live = memory.list_live(*takers, top=None)
    assert sorted((each.tag, each.nbytes) for each in live) == sorted(expected)
    assert sum(each.rounded_bytes for each in live) == sum(
        align_up(nbytes) for _, nbytes in expected
    )
    require_apart(live)
    for base in bases:
        stats = base.stats()
        mine = memory.list_live(base, top=None)
        assert sum(each.nbytes for each in mine) == stats.requested_bytes
        assert sum(each.rounded_bytes for each in mine) == stats.current_bytes


def require_apart(live: list[LiveBlock]) -> None:
    """No two blocks overlap."""
    end = 0
    for each in sorted(live, key=lambda each: each.address):
        assert each.address >= end
        end = each.address + each.rounded_bytes


class TestAlive:
    """The registry: weak, whole, and quiet."""

    def test_every_resource_is_in_it_while_it_lives(self):
        for make in MAKERS.values():
            resource = make()
            assert any(each is resource for each in live_resources.alive())
            place = weakref.ref(resource)
            del resource
            assert place() is None
        arena = memory.Pool().arena(2**20)
        assert any(each is arena for each in live_arenas.alive())

    def test_the_dead_leave_nothing_behind(self):
        gc.collect()
        resources, arenas = len(live_resources), len(live_arenas)
        for _ in range(300):
            memory.statistics(memory.Pool(memory.system())).allocate(10)
            memory.Pool().arena(2**20).grow(100)
        assert (len(live_resources), len(live_arenas)) == (resources, arenas)

    def test_one_that_dies_in_a_cycle_goes_too(self):
        gc.collect()
        before = len(live_resources)
        holder = []
        pool = memory.Pool()
        holder.append(memory.failure_callback(pool, lambda _, mine=holder: bool(mine)))
        assert len(live_resources) == before + 2
        del holder, pool
        gc.collect()
        assert len(live_resources) == before

    @pytest.mark.parametrize("options", [{"limit": -1}, {"limit": 1, "x": 2}])
    def test_one_that_was_never_made_is_not_in_it(self, options):
        gc.collect()
        before = len(live_resources)
        with pytest.raises((TypeError, ValueError)):
            memory.Pool(**options)
        assert len(live_resources) == before

    def test_it_is_from_the_oldest_to_the_newest(self):
        made = [memory.system(str(number)) for number in range(5)]
        mine = [each for each in live_resources.alive() if each in made]
        assert mine == made

    def test_it_can_be_read_while_the_collector_runs(self):
        """Collections come at any allocation, and take things out of the list."""
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(300):
                cycle = [memory.failure_callback(memory.Pool(), lambda _: False)]
                cycle.append(cycle)
                del cycle
                assert all(each.upstream is not self for each in live_resources.alive())
        finally:
            gc.set_threshold(*before)

    def test_nothing_is_said_at_the_end_of_the_process(self):
        script = """
import gc, threading
from memcfg import memory
pool = memory.Pool(name="global")
block = pool.allocate(1000)
arena = pool.arena(2**20)
cycle = [memory.failure_callback(pool, lambda _: bool(cycle))]
threading.Thread(target=lambda: memory.Pool().allocate(10)).start()
print(len(memory.list_live()))
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_lists_are_whole_while_threads_allocate_and_resources_come_and_go(tenths):
    pool = memory.Pool(limit="256MiB", name="shared")

    def come_and_go():
        memory.Pool(memory.limiting(memory.system(), None)).allocate(1000)
        arena = pool.arena(2**20, tag="arena")
        arena.grow(5000)
        arena.grow(70_000)

    users = [random_user(pool, seed) for seed in range(2)]
    with repeated(come_and_go, *users):
        for _ in range(15 * tenths):
            require_apart(memory.list_live(pool, top=None))
            require_apart(memory.list_live(pool))
            arenas = [
                each for each in memory.list_live(top=None) if each.kind == "arena"
            ]
            assert all(each.nbytes in (5000, 70_000) for each in arenas)
            for report in memory.summary(), memory.occupancy():
                assert max(map(len, report.splitlines())) <= 80
    assert sum(n for _, n in held(pool, top=None)) == pool.stats().requested_bytes


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
def test_a_child_lists_what_it_has_inherited():
    pool = memory.Pool(limit="64MiB", name="inherited")
    block = pool.allocate(1000, tag="mine")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            more = pool.allocate(2000, tag="child")
            os.write(writer, repr(held(pool)).encode())
            more.free()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as stream:
        assert stream.read().decode() == repr([("child", 2000), ("mine", 1000)])
    assert held(pool) == [("mine", 1000)]
    block.free()


GROWING = """
import os, signal, threading, warnings
from memcfg import memory
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
pool = memory.Pool(limit="64MiB")
tracked = memory.tracking(pool, stacks=True, max_entries=100)
arena = pool.arena(2**24, tag="arena")
stop = threading.Event()

def repeat():
    while not stop.is_set():
        tracked.allocate(100).free()
        arena.grow(2**20)
        arena.shrink(0)

thread = threading.Thread(target=repeat, daemon=True)
thread.start()
for _ in range({forks}):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        live = memory.list_live()
        assert set(each.nbytes for each in live) <= set((2**20, 100)), live
        assert memory.summary() and memory.occupancy()
        memory.snapshot(os.devnull)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
thread.join()
print("well")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
def test_a_child_reports_while_an_arena_was_growing(tenths):
    """A report waits for no lock that the parent's thread may have had."""
    done = subprocess.run(
        [sys.executable, "-c", GROWING.format(forks=4 * tenths)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "well\n")


class TestTracked:
    """Ages and stacks, where a tracking resource is above."""

    def test_they_come_from_whoever_knows(self):
        pool = memory.Pool(limit="64MiB", name="scratch")
        tracked = memory.tracking(memory.limiting(pool, None), stacks=True)
        above = memory.statistics(tracked)
        known = above.allocate(3000, tag="known")
        unknown = pool.allocate(2000, tag="unknown")
        for chosen in ([pool], [tracked, pool], [], [pool, above]):
            rows = [
                each for each in memory.list_live(*chosen) if each.resource == "scratch"
            ]
            assert [each.tag for each in rows] == ["known", "unknown"]
            filename, line, function = rows[0].stack[0]
            assert os.path.basename(filename) == "test_live.py"
            assert function.endswith("test_they_come_from_whoever_knows")
            assert 0 <= rows[0].seconds < 60
            assert rows[0].thread is not None
            assert f"test_live.py:{line} " in str(rows[0])
            assert (rows[1].seconds, rows[1].stack, rows[1].thread) == (None, (), None)
        assert [each.tag for each in memory.list_live(tracked)] == ["known"]
        known.free()
        unknown.free()

    def test_of_two_the_one_with_a_stack_tells(self):
        pool = memory.Pool(limit="64MiB")
        below = memory.tracking(pool)
        above = memory.tracking(below, stacks=True)
        with above.allocate(3000), below.allocate(2000):
            rows = memory.list_live(pool)
            assert rows[0].stack
            assert rows[1].stack == ()
            assert None not in (rows[0].seconds, rows[1].seconds)
