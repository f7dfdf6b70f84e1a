"""Snapshots: exact, whole, and such that their readers do not stumble."""

from __future__ import annotations

import errno
import gc
import os
import resource

import pytest
from busy import random_user, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from resources import MAKERS
from snapshots import load, of_device

from memcfg import memory
from memcfg.memory import Trace

MIB = 2**20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.pickle"


def take(path, *resources, **options):
    memory.snapshot(path, *resources, overwrite=True)
    return load(path, **options)


def requested(snapshot, device) -> int:
    return sum(each["requested_size"] for each in of_device(snapshot, device))


def reserved(snapshot, device) -> int:
    return sum(each["total_size"] for each in of_device(snapshot, device))


def shape(segment) -> list[tuple[str, int, int]]:
    return [
        (each["state"], each["size"], each["requested_size"])
        for each in segment["blocks"]
    ]


class TestLayout:
    def test_a_layout_made_by_hand(self, path):
        pool = memory.Pool(memory.simulated("1GiB"), limit="16MiB", name="GPU:0")
        low = [
            pool.allocate(size, lifetime="long", tag=tag)
            for size, tag in ((100, "a"), (70_000, "b"), (MIB, "c"), (64, "d"))
        ]
        high = pool.allocate(4 * MIB, lifetime="short", tag="e")
        base = min(block.address for block in low)
        low[2].free()
        first, last = take(path, pool)["segments"]
        assert shape(first) == [
            ("active_allocated", 128, 100),
            ("active_allocated", 70_016, 70_000),
            ("inactive", MIB, 0),
            ("active_allocated", 64, 64),
            ("inactive", 274 * 4096 - (128 + 70_016 + MIB + 64), 0),
        ]
        assert shape(last) == [("active_allocated", 4 * MIB, 4 * MIB)]
        assert first["address"] == base - 2**62 + 2**32
        assert last["address"] == high.address - 2**62 + 2**32
        assert first["allocated_size"] == 128 + 70_016 + 64
        assert first["requested_size"] == 100 + 70_000 + 64
        assert first["segment_type"] == last["segment_type"] == "large"
        # The freed block's own pages go; those that its neighbours share stay.
        pool.trim()
        first, second, last = take(path, pool)["segments"]
        assert [state for state, *_ in shape(first)] == [
            *("active_allocated", "active_allocated", "inactive")
        ]
        assert [state for state, *_ in shape(second)] == [
            *("inactive", "active_allocated", "inactive")
        ]
        for block in (low[0], low[1], low[3], high):
            block.free()

    def test_tags_are_frames_and_metadata(self, path):
        pool = memory.Pool(limit="64MiB", name="scratch")
        names = [
            "weights",
            "",
            "a;b\nc\x1b[0m",
            "batch_start",
            "net/layer_start",
            "重み",
        ]
        blocks = [pool.allocate(1000, tag=name) for name in names]
        snapshot = take(path, pool)
        segment = snapshot["segments"][0]
        assert segment["frames"] == [frame("resource", "scratch (pool)")]
        shown = [each["frames"] for each in segment["blocks"]]
        assert shown[:6] == [
            [frame("tag", "weights")],
            [frame("tag", "unnamed")],
            [frame("tag", r"a\x3bb\nc\x1b[0m")],
            [frame("batch_start", "tag")],  # tools drop functions of such names
            [frame("net/layer_start", "tag")],
            [frame("tag", "重み")],
        ]
        notes = [each.get("user_metadata", "") for each in segment["blocks"]]
        assert notes[:6] == names
        del blocks

    def test_what_a_thread_keeps_is_free_and_says_so(self, path):
        pool = memory.Pool(limit="64MiB")
        for block in [pool.allocate(512) for _ in range(16)]:
            block.free()
        snapshot = take(path, pool)
        kept = [
            each
            for segment in snapshot["segments"]
            for each in segment["blocks"]
            if each["frames"]
        ]
        assert kept
        for each in kept:
            assert each["state"] == "inactive"
            assert each["frames"][0]["name"] == "kept by a thread for its next request"
            assert each["requested_size"] == each["size"]
        assert requested(snapshot, 0) == pool.stats().requested_bytes == 0

    def test_an_arena_is_a_segment_of_one_block(self, path):
        pool = memory.Pool(limit="64MiB")
        arenas = [pool.arena(MIB, tag=f"arena {i}") for i in range(3)]
        arenas[0].grow(1000)
        arenas[1].grow(5000)
        snapshot = take(path, pool)
        assert sorted(
            (each["address"], shape(each)) for each in snapshot["segments"]
        ) == sorted(
            [
                (arenas[0].address, [("active_allocated", 1024, 1000)]),
                (arenas[1].address, [("active_allocated", 5056, 5000)]),
            ]
        )
        assert requested(snapshot, 0) == pool.stats().requested_bytes

    def test_blocks_of_other_resources_are_segments(self, path):
        system = memory.system("heap")
        blocks = [system.allocate(size, tag="t") for size in (100, 64, 3 * MIB)]
        segments = take(path, system)["segments"]
        assert [each["address"] for each in segments] == sorted(
            block.address for block in blocks
        )
        assert sorted(map(shape, segments)) == sorted(
            [("active_allocated", rounded, size)]
            for size, rounded in ((100, 128), (64, 64), (3 * MIB, 3 * MIB))
        )
        del blocks

    def test_each_resource_is_a_device(self, path):
        resources = [make() for make in MAKERS.values()]
        blocks = [
            each.allocate(1000 * (i + 1), tag="t") for i, each in enumerate(resources)
        ]
        snapshot = take(path, *resources)
        described = snapshot["allocator_settings"]["devices"]
        assert len(snapshot["device_traces"]) == len(resources) == len(described)
        for device, (each, block) in enumerate(zip(resources, blocks, strict=True)):
            below = each
            while not isinstance(below, memory.Pool) and below.upstream is not None:
                below = below.upstream
            assert requested(snapshot, device) == below.stats().requested_bytes
            assert described[device]["requested_bytes"] == block.requested
            assert described[device]["name"] == each.name
        # One that stands on another one is the same device.
        pool = resources[2]
        on_top = memory.limiting(pool, None)
        assert len(take(path, on_top, pool, on_top)["device_traces"]) == 1

    def test_a_pools_segments_are_blocks_of_the_resource_below(self, path):
        system = memory.system()
        pool = memory.Pool(system)
        with pool.allocate(100):
            snapshot = take(path, system, pool)
        below, above = (of_device(snapshot, device) for device in (0, 1))
        assert [each["total_size"] for each in below] == [2 * MIB]
        assert below[0]["blocks"][0]["user_metadata"] == "pool"
        assert above[0]["address"] == below[0]["address"]

    def test_nothing_named_is_everything_alive(self, path):
        gc.collect()  # pools of other tests, with what was refused there
        pool = memory.Pool(limit="64MiB", name="one of its kind")
        block = pool.allocate(1000)
        snapshot = take(path)
        names = [each["name"] for each in snapshot["allocator_settings"]["devices"]]
        assert "one of its kind" in names
        assert len(names) == len(snapshot["device_traces"])
        block.free()

    def test_resources_that_hold_nothing_can_be_opened_too(self, path):
        for resources in ([memory.Pool()], [memory.system(), memory.Pool()]):
            snapshot = take(path, *resources)
            assert snapshot["segments"] == []
            assert [each["action"] for each in snapshot["device_traces"][0]] == [
                "snapshot"
            ]

    def test_terabytes_are_exact(self, path):
        device = memory.simulated("100TiB", name="GPU:0")
        pools = [memory.Pool(device) for _ in range(2)]
        blocks = [pool.allocate(10 * 2**40 + i) for i, pool in enumerate(pools, 1)]
        own = device.allocate(2**40 + 3)
        snapshot = take(path, device, *pools)
        assert requested(snapshot, 0) == 2**40 + 3
        assert requested(snapshot, 1) == 10 * 2**40 + 1
        assert requested(snapshot, 2) == 10 * 2**40 + 2
        del blocks, own


def frame(filename: str, name: str, line: int = 0) -> dict[str, object]:
    return {"filename": filename, "line": line, "name": name}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "free", "trim", "arena"]),
        st.integers(1, 300_000),
        st.sampled_from(["", "weights", "b;c", "ü"]),
        st.sampled_from([None, "short", "long"]),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(st.sampled_from(["host", "simulated", "blocks"]), STEPS)
def test_the_sums_are_those_of_stats(tmp_path_factory, kind, steps):
    below = {"host": None, "simulated": memory.simulated("1GiB")}.get(
        kind, memory.system()
    )
    pool = memory.Pool(below, limit="512MiB")
    blocks, arenas = [], 0
    for action, number, tag, lifetime in steps:
        if action == "take":
            blocks.append(pool.allocate(number, tag=tag, lifetime=lifetime))
        elif action == "free" and blocks:
            blocks.pop(number % len(blocks)).free()
        elif action == "trim":
            pool.trim(number)
        elif action == "arena" and kind != "blocks":
            blocks.append(pool.arena(MIB, tag=tag))
            blocks[-1].grow(number)
            arenas += 1
    path = tmp_path_factory.mktemp("snapshots") / "memory.pickle"
    snapshot = take(path, pool)
    stats = pool.stats()
    assert requested(snapshot, 0) == stats.requested_bytes
    allocated = sum(each["allocated_size"] for each in snapshot["segments"])
    # Blocks of 4 to 64 KiB are of a size class: at most 1/32 larger.
    assert stats.current_bytes <= allocated <= stats.current_bytes * 33 / 32
    # An arena's last page is not shown beyond its bytes.
    rest = stats.reserved_bytes - reserved(snapshot, 0)
    assert 0 <= rest <= 4096 * arenas


class TestFile:
    def test_a_file_that_is_there_is_left_alone(self, path):
        path.write_bytes(b"mine")
        with pytest.raises(FileExistsError) as caught:
            memory.snapshot(path, memory.Pool())
        assert caught.value.filename == str(path)
        assert path.read_bytes() == b"mine"
        memory.snapshot(path, memory.Pool(), overwrite=True)
        load(path)
        assert os.listdir(path.parent) == [path.name]

    def test_a_missing_folder_is_named(self, tmp_path):
        path = tmp_path / "none" / "memory.pickle"
        with pytest.raises(FileNotFoundError) as caught:
            memory.snapshot(str(path))
        assert caught.value.filename == str(path)

    def test_a_folder_is_no_file(self, tmp_path):
        for overwrite in (False, True):
            with pytest.raises(IsADirectoryError):
                memory.snapshot(tmp_path, overwrite=overwrite)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_full_disk_leaves_nothing_behind(self, path, overwrite):
        pool = memory.Pool(limit="64MiB")
        blocks = [pool.allocate(64, tag=str(i)) for i in range(1000)]
        if overwrite:
            path.write_bytes(b"mine")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(OSError, match=r".") as caught:
                memory.snapshot(path, pool, overwrite=overwrite)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.errno == errno.EFBIG
        assert caught.value.filename == str(path)
        names = [path.name] if overwrite else []
        assert os.listdir(path.parent) == names
        assert not overwrite or path.read_bytes() == b"mine"
        del blocks

    @pytest.mark.parametrize("bad", [1, None, "yes"])
    def test_overwrite_is_yes_or_no(self, path, bad):
        with pytest.raises(TypeError, match="overwrite"):
            memory.snapshot(path, overwrite=bad)
        assert not path.exists()

    def test_only_resources_are_shown(self, path):
        with pytest.raises(TypeError, match="resources"):
            memory.snapshot(path, "CPU:0")
        assert not path.exists()


def test_snapshots_are_whole_while_threads_allocate(path, tenths):
    pool = memory.Pool(limit="256MiB", name="shared")
    tracked = memory.tracking(pool, max_entries=500)
    with repeated(*(random_user(tracked, seed) for seed in range(2))):
        for _ in range(2 * tenths):
            take(path, pool, quiet=False)
            take(path, quiet=False)
    assert requested(take(path, pool), 0) == pool.stats().requested_bytes


@settings(deadline=None)
@given(
    kind=st.sampled_from(["pool", "system", "simulated"]),
    most=st.sampled_from([3, 10_000]),
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 20_000), st.sampled_from(["", "a"])),
        max_size=60,
    ),
)
def test_a_tracked_history_is_there_and_back(tmp_path_factory, kind, most, steps):
    """Also where blocks went past the tracking resource, or its memory was short."""
    path = tmp_path_factory.mktemp("snapshots") / "memory.pickle"
    base = {
        "pool": lambda: memory.Pool(limit="64MiB"),
        "system": memory.system,
        "simulated": lambda: memory.Pool(memory.simulated("1GiB")),
    }[kind]()
    tracked = memory.tracking(base, stacks=True, max_entries=most)
    blocks = []
    for told, number, tag in steps:
        if number % 2 and blocks:
            blocks.pop(number % len(blocks)).free()
        else:
            blocks.append((tracked if told else base).allocate(1 + number, tag=tag))
    snapshot = take(path, memory.Pool(), base)  # nothing, and the device in question
    assert requested(snapshot, 1) == base.stats().requested_bytes
    there, back = tracked.trace(), Trace.from_snapshot(path, device=1)
    told = [row for row in rows_of(there, kind) if row[0] != 0]
    assert [row for row in rows_of(back, "pool") if row[0] != 0] == told
    out = {}
    for action, address, nbytes in rows_of(back, "pool"):
        if action == 0:
            out[address] = nbytes
        else:
            assert out.pop(address) == nbytes
    held = {shown(block.address, kind): block.requested for block in blocks}
    assert out == held
    if len(there):
        assert Trace.from_snapshot(path) == back  # the only device with a history


def rows_of(trace, kind) -> list[tuple[int, int, int]]:
    columns = (trace.action, trace.address, trace.nbytes)
    rows = zip(*(each.tolist() for each in columns), strict=True)
    return [(action, shown(address, kind), nbytes) for action, address, nbytes in rows]


def shown(address: int, kind: str) -> int:
    return address - 2**62 + 2**32 if kind == "simulated" else address


def test_of_two_tracking_resources_one_tells_the_history(path):
    pool = memory.Pool(limit="64MiB")
    lower = memory.tracking(pool)
    upper = memory.tracking(lower, stacks=True)
    blocks = [resource.allocate(1000, tag="a") for resource in (lower, upper)]
    blocks.pop().free()
    take(path, lower, upper)
    back = Trace.from_snapshot(path)
    assert back.action.tolist() == [0, 0, 1]
