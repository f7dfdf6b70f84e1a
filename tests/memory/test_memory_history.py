"""Histories of pools: at every event, the bytes are those that the pool counts."""

from __future__ import annotations

import gc
import os
import random
import threading

import numpy as np
import pytest
from timelines import alive, overlaps

import memcfg as mc
from memcfg import memory
from memcfg.memory import MemoryHistory, Pool

KINDS = ("allocate", "free", "refused")


def totals(trace):
    """Sum the bytes of a trace after each of its rows, as asked for and rounded."""
    signs = np.choose(trace.action, (1, -1, 0))
    nbytes = trace.nbytes.astype(np.int64)
    return np.cumsum(signs * nbytes), np.cumsum(signs * -(-nbytes // 64 * 64))


def left_over(trace):
    """Return what is out at the end of a trace: bytes and tag by address."""
    out = {}
    for action, address, nbytes, tag in zip(
        *(column.tolist() for column in (trace.action, trace.address, trace.nbytes)),
        trace.tag.tolist(),
        strict=True,
    ):
        if action == 0:
            out[address] = (nbytes, trace.tags[tag])
        elif action == 1:
            del out[address]
    return out


class Program:
    """Takes, frees and resizes blocks and arenas at random, and is refused."""

    def __init__(self, pool, seed):
        self.pool, self.rng = pool, random.Random(seed)
        self.blocks, self.arenas = [], []
        self.counted = []  # what the pool counts after each event

    def step(self):
        choice = self.rng.random()
        tag = self.rng.choice(["", "a", "b", "a longer name"])
        if choice < 0.45:
            nbytes = self.rng.choice([50, 3_000, 70_000, 200_000])
            self.blocks.append(
                self.pool.allocate(self.rng.randrange(1, nbytes), tag=tag)
            )
        elif choice < 0.75 and self.blocks:
            self.blocks.pop(self.rng.randrange(len(self.blocks))).free()
        elif choice < 0.8:
            arena = self.pool.arena(2**20, tag=tag)
            arena.grow(self.rng.randrange(1, 2**19))
            self.arenas.append(arena)
        elif choice < 0.9 and self.arenas:
            self.change(self.rng.choice(self.arenas))
        elif choice < 0.95 and self.arenas:
            self.arenas.pop(self.rng.randrange(len(self.arenas))).free()
        else:
            with pytest.raises(MemoryError):
                self.pool.allocate(2**40 + self.rng.randrange(2**20), tag=tag)
        stats = self.pool.stats()
        self.counted.append((stats.requested_bytes, stats.current_bytes))

    def change(self, arena):
        nbytes = self.rng.randrange(2**20)
        (arena.grow if nbytes > arena.nbytes else arena.shrink)(nbytes)

    def end(self):
        for each in (*self.blocks, *self.arenas):
            each.free()


@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_those_that_the_pool_counts_at_every_event(seed):
    pool = Pool(limit="16MiB", name="scratch")
    program = Program(pool, seed)
    for _ in range(40):
        program.step()
    program.counted.clear()
    with MemoryHistory(pool) as history:
        for _ in range(300):
            program.step()
        pool.check()
        stats, owners = pool.stats(), pool.owners()
    trace = history.trace()
    requested, rounded = totals(trace)
    # A change of an arena is two events; the sums between them are of no moment.
    seen = iter(zip(requested.tolist(), rounded.tolist(), strict=True))
    for counted in program.counted:
        assert counted in seen, counted  # goes on behind it
    assert (requested[-1], rounded[-1]) == (stats.requested_bytes, stats.current_bytes)
    by_tag = {}
    for nbytes, tag in left_over(trace).values():
        tag = tag or "unnamed"
        by_tag[tag] = by_tag.get(tag, 0) + -(-nbytes // 64 * 64)
    assert by_tag == owners
    timeline = history.timeline()
    assert [event.live_bytes for event in timeline.events] == rounded.tolist()
    assert overlaps(timeline.boxes) == []
    for number, event in enumerate(timeline.events):
        assert event.live_bytes == sum(box.nbytes for box in alive(timeline, number))
    assert timeline.limit_bytes == 16 * 2**20
    assert timeline.peak_bytes == max(rounded)
    assert {event.kind for event in timeline.events} == set(KINDS)
    program.end()


def train(pool):
    """Train a model on a dataset, and make an array of a program."""
    x, y = np.ones((64, 32), "float32"), np.ones((64, 4), "float32")
    layers = [mc.nn.Input((32,)), mc.nn.Dense(64), mc.nn.Dense(4)]
    model = mc.nn.Sequential(layers, name="small")
    model.compile("adam", "mse")
    data = mc.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(64)
    model.fit(data.batch(16).prefetch(2), epochs=2, verbose=0)
    with memory.numpy_allocator(pool):
        array = np.ones(5000)
    model.close()
    return array.nbytes


def test_the_peak_is_that_of_the_pool_while_a_model_trains_on_a_dataset():
    mc.config.reset()
    mc.config.set_memory_limit("CPU:0", "16MiB")
    pool = mc.config.logical_device("CPU:0").pool
    with mc.config.record_memory_history("CPU:0") as history:
        pool.reset_peak()
        nbytes = train(pool)
        peak = pool.stats().peak_bytes
    timeline = history.timeline()
    assert timeline.peak_bytes == peak
    assert timeline.limit_bytes == 16 * 2**20
    assert timeline.title == "Memory of CPU:0"
    roles = {box.role for box in timeline.boxes}
    assert roles == {"data", "model small", "numpy", "workspace data prefetch"}
    assert nbytes in {box.requested_bytes or box.nbytes for box in timeline.boxes}


def test_threads_leave_no_gap():
    pool = Pool(limit="64MiB", name="scratch")

    def work(seed):
        rng, blocks = random.Random(seed), []
        for _ in range(400):
            if blocks and rng.random() < 0.5:
                blocks.pop(rng.randrange(len(blocks))).free()
            else:
                blocks.append(pool.allocate(rng.randrange(1, 5000), tag=f"t{seed}"))
        for block in blocks:
            block.free()
        kept.extend(pool.allocate(64 * n, tag="kept") for n in range(1, 4))

    kept = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    with MemoryHistory(pool) as history:
        for thread in threads:
            thread.start()
        for _ in range(20):
            assert overlaps(history.timeline().boxes) == []
        for thread in threads:
            thread.join()
        pool.check()
    trace = history.trace()
    assert sorted(nbytes for nbytes, _ in left_over(trace).values()) == sorted(
        block.nbytes for block in kept
    )
    assert len(set(trace.thread.tolist())) == 4
    assert (np.diff(trace.seconds) >= 0).all()
    assert totals(trace)[0][-1] == pool.stats().requested_bytes
    for block in kept:
        block.free()


def test_only_the_newest_events_are_kept_and_those_before_are_undone():
    pool = Pool(limit="1MiB", name="scratch")
    first = pool.allocate(100, tag="first")
    with MemoryHistory(pool, max_entries=10) as history:
        middle = [pool.allocate(64 * n, tag="middle") for n in range(1, 20)]
        first.free()
        last = pool.allocate(7, tag="last")
    assert history.dropped == 11
    trace = history.trace()
    assert totals(trace)[0][-1] == pool.stats().requested_bytes
    assert [tag for _, tag in left_over(trace).values()].count("middle") == 19
    assert trace.seconds[0] == trace.seconds[11]
    timeline = history.timeline()
    assert timeline.facts["dropped events"] == "11"
    before = [box for box in timeline.boxes if box.origin == "before the recording"]
    assert [(box.role, box.requested_bytes or box.nbytes) for box in before].count(
        ("first", 100)
    ) == 1
    assert len(before) == 12
    for block in (*middle, last):
        block.free()


def test_histories_of_one_pool_nest_and_overlap():
    pool = Pool(limit="1MiB")
    outer = MemoryHistory(pool)
    one = pool.allocate(1000, tag="one")
    with MemoryHistory(pool) as inner:
        two = pool.allocate(2000, tag="two")
        one.free()
    two.free()
    outer.stop()
    pool.allocate(3000).free()
    assert repr(outer.trace()) == "<Trace: 2 allocations, 2 frees, 0 failures>"
    assert repr(inner.trace()) == "<Trace: 2 allocations, 1 frees, 0 failures>"
    assert inner.stopped
    with pytest.raises(RuntimeError, match="stopped"), outer:
        pass


def test_an_error_stops_the_recording_and_what_was_recorded_stays():
    pool = Pool(limit="1MiB", name="scratch")
    with pytest.raises(MemoryError), MemoryHistory(pool) as history:
        pool.allocate(2**30, tag="large")
    pool.allocate(64).free()
    timeline = history.timeline()
    (event,) = timeline.events
    assert (event.kind, event.name) == ("refused", "large")
    assert "nothing was allocated" in str(timeline)


def test_a_dropped_history_costs_nothing_any_more():
    pool = Pool(limit="1MiB")
    before = pool.stats().metadata_bytes
    history = MemoryHistory(pool)
    pool.allocate(100, tag="x").free()
    assert pool.stats().metadata_bytes > before
    del history
    gc.collect()
    # Small blocks are kept by their thread again.
    pool.allocate(10_000).free()
    assert "x" in pool.occupancy(1000)


def test_a_reader_sees_nothing_from_behind_the_end():
    pool = Pool(limit="16MiB")
    seen = []

    def read(history, begin):
        begin.wait()
        while not history.stopped:
            seen.append(history.trace())
        seen.append(history.trace())

    for _ in range(100):
        seen.clear()
        history, begin = MemoryHistory(pool), threading.Barrier(4)
        threads = [
            threading.Thread(target=read, args=(history, begin)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        begin.wait()
        blocks = [pool.allocate(1000, tag="within")]
        history.stop()
        blocks += [pool.allocate(1000, tag="behind") for _ in range(5)]
        for thread in threads:
            thread.join()
        assert not any("behind" in trace.tags for trace in seen)
        for block in blocks:
            block.free()


def test_while_it_records_threads_keep_no_blocks():
    pool = Pool(limit="1MiB")
    pool.allocate(10_000).free()
    assert "x" in pool.occupancy(1000)
    with MemoryHistory(pool):
        assert "x" not in pool.occupancy(1000)
        pool.allocate(10_000).free()
        assert "x" not in pool.occupancy(1000)


def test_several_pools_have_one_clock_and_their_names():
    one, two = Pool(limit="1MiB", name="one"), Pool(limit="2MiB", name="two")
    with MemoryHistory(one, two) as history:
        blocks = [pool.allocate(100, tag="x") for pool in (one, two, one)]
        blocks[0].free()
    timeline = history.timeline()
    assert [event.layer for event in timeline.events] == ["one", "two", "one", "one"]
    assert timeline.limit_bytes is None
    limits = "one 1048576 B (1.00 MiB), two 2097152 B (2.00 MiB)"
    assert timeline.numbers()["limit"] == limits
    assert timeline.peak_bytes == 384
    assert timeline.title == "Memory of one, two"
    with pytest.raises(ValueError, match="stands on"):
        MemoryHistory(one, Pool(one, limit="64KiB"))
    for pools in ((), (one, one)):
        with pytest.raises(ValueError, match=r"at least one|twice"):
            MemoryHistory(*pools)
    with pytest.raises(TypeError, match="of pools"):
        MemoryHistory(memory.system())
    with pytest.raises(ValueError, match="entries"):
        MemoryHistory(one, max_entries=0)


def test_memory_that_goes_from_one_pool_to_another_is_in_one_at_a_time():
    base = Pool(limit="64MiB", name="base")
    pools = [Pool(base, limit="8MiB", name=name) for name in ("one", "two")]
    ends = threading.Event()

    def move():
        while not ends.is_set():
            for pool in pools:
                block = pool.allocate(2**20, tag="moves")
                seen.add(block.address)
                block.free()
                pool.trim()

    seen, thread = set(), threading.Thread(target=move)
    with MemoryHistory(*pools, max_entries=200) as history:
        thread.start()
        try:
            for _ in range(200):
                assert overlaps(history.timeline().boxes) == []
        finally:
            ends.set()
            thread.join()
    assert len(seen) < 20  # so blocks of both have had one address


def test_events_and_the_end_are_of_one_clock(monkeypatch):
    pool = Pool(limit="1MiB")
    with MemoryHistory(pool) as history:
        block = pool.allocate(1000)
        # Such as when the system's clock is set.
        monkeypatch.setattr("time.time", lambda: 0.0)
        timeline = history.timeline()
    assert timeline.planned[-1] < 60
    assert timeline.planned[-1] <= history.timeline().planned[-1] < 60
    block.free()


def test_devices_are_recorded_by_name_or_all():
    mc.config.reset()
    mc.config.experimental.add_simulated_device("GPU", memory="1GiB")
    with mc.config.record_memory_history() as history:
        block = mc.config.logical_device("GPU:0").pool.allocate(1000, tag="weights")
    assert {"CPU:0", "GPU:0"} <= set(history.timeline().title[10:].split(", "))
    assert [box.layer for box in history.timeline().boxes if box.role == "weights"] == [
        "GPU:0"
    ]
    block.free()
    with pytest.raises(ValueError, match="twice"):
        mc.config.record_memory_history("CPU:0", "cpu:0")
    with pytest.raises(ValueError, match="there are"):
        mc.config.record_memory_history("CPU:9")
    mc.config.reset()


def test_a_timeline_can_be_drawn_while_it_goes_on(tmp_path):
    pool = Pool(limit="1MiB", name="scratch")
    history = MemoryHistory(pool)
    blocks = [pool.allocate(1000 * n, tag="<tag>") for n in range(1, 5)]
    for suffix in ("html", "svg", "json", "txt"):
        history.timeline().save(tmp_path / f"record.{suffix}")
    assert "&lt;tag&gt;" in history._repr_html_()
    assert "recording" in repr(history)
    history.stop()
    assert "limit" in str(history.timeline())
    for block in blocks:
        block.free()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_has_the_events_until_then():
    pool = Pool(limit="1MiB")
    history = MemoryHistory(pool)
    block = pool.allocate(1000, tag="parent")
    child = os.fork()
    if child == 0:
        other = pool.allocate(2000, tag="child")
        fine = len(left_over(history.trace())) == 2
        other.free()
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(history.trace()) == 1
    block.free()
