"""Replays: byte figures against a simulation, times, resources that are left clean."""

from __future__ import annotations

import re
import signal
import threading
import time
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resources import ALL_MAKERS, NAMES, touchable

from memcfg import memory
from memcfg.errors import FormatError, InvalidFreeError
from memcfg.memory import ReplayReport, ReplayRun, Trace
from memcfg.units import align_up


@st.composite
def traces(draw, most=3000):
    rows, out, places = [], {}, 0
    for choice in draw(st.lists(st.integers(0, 9), max_size=80)):
        if choice == 9:
            rows.append((2, 0, draw(st.integers(1, most)), 0))
        elif choice < 4 and out:
            address = sorted(out)[choice % len(out)]
            rows.append((1, address, out.pop(address), 0))
        else:
            places += 1
            address = places % 17 if places % 17 not in out else 1000 + places
            out[address] = draw(st.integers(1, most))
            rows.append((0, address, out[address], draw(st.integers(0, 2))))
    return make(rows)


def make(rows, tags=("", "a", "b")):
    columns = [[row[place] for row in rows] for place in range(4)]
    names = ("action", "address", "nbytes", "tag")
    return Trace(**dict(zip(names, columns, strict=True)), tags=tags)


def simulate(trace, limit):
    """The byte figures of a replay, worked out one row after the other."""
    out, in_use, requested = {}, 0, 0
    figures = {
        "operations": 0,
        "failures": 0,
        "first_failure": None,
        "utilisation": None,
        "skipped": 0,
        "peak_in_use_bytes": 0,
        "peak_requested_bytes": 0,
    }
    for row, (action, address, nbytes) in enumerate(
        zip(
            trace.action.tolist(),
            trace.address.tolist(),
            trace.nbytes.tolist(),
            strict=True,
        )
    ):
        if action == 1 and out[address] is None:
            figures["skipped"] += 1
        elif action == 1:
            in_use -= align_up(nbytes)
            requested -= nbytes
        elif action == 0 and in_use + align_up(nbytes) > limit:
            figures["failures"] += 1
            if figures["first_failure"] is None:
                figures["first_failure"] = row
                figures["utilisation"] = requested / limit
            out[address] = None
        elif action == 0:
            in_use += align_up(nbytes)
            requested += nbytes
            out[address] = nbytes
        if action == 1:
            figures["operations"] += out.pop(address) is not None
        if action == 0:
            figures["operations"] += 1
        figures["peak_in_use_bytes"] = max(figures["peak_in_use_bytes"], in_use)
        figures["peak_requested_bytes"] = max(
            figures["peak_requested_bytes"], requested
        )
    left = [nbytes for nbytes in out.values() if nbytes is not None]
    return figures | {"left": len(left), "left_bytes": sum(left)}


def figures_of(run, names):
    return {name: getattr(run, name) for name in names}


@given(traces(), st.sampled_from([64, 2000, 20_000, 2**30]))
def test_figures_agree_with_a_simulation(trace, limit):
    expected = simulate(trace, limit)
    resources = [
        memory.limiting(memory.system(), limit),
        memory.limiting(memory.Pool(memory.simulated("4GiB")), limit),
        memory.Pool(limit=limit + 2**22) if limit == 2**30 else memory.simulated(limit),
    ]
    for resource in resources:
        report = memory.replay(trace, resource, repeats=2)
        for run in report.runs:
            assert figures_of(run, expected) == expected
            assert run.peak_reserved_bytes >= run.peak_in_use_bytes
        assert resource.stats().current_bytes == 0
        resource.check()


EVERYTHING = make(
    [
        (0, 1, 100_000, 1),
        (0, 2, 10, 2),
        (2, 0, 99, 0),
        (1, 1, 100_000, 0),
        (0, 1, 2**20, 0),
        (0, 3, 7, 0),
        (1, 3, 7, 0),
    ]
)


@pytest.mark.parametrize("maker", NAMES)
def test_any_resource_plays_and_ends_as_it_began(maker):
    resource = ALL_MAKERS[maker]()
    with resource.allocate(1000, tag="others"):
        for touch in {False, touchable(resource)}:
            report = memory.replay(EVERYTHING, resource, touch=touch, repeats=2)
            expected = simulate(EVERYTHING, 2**30)
            assert figures_of(report.runs[1], expected) == expected
            assert resource.owners() == {"others": 1024}
    assert resource.stats().current_bytes == 0
    resource.check()


def test_tags_go_along():
    counted = memory.statistics(memory.Pool())
    memory.replay(EVERYTHING, counted)
    rows = counted.by_tag()
    assert {tag: region.total_bytes for tag, region in rows.items()} == {
        "a": align_up(100_000),
        "b": 64,
        "": 2**20 + 64,
    }


def test_a_tighter_limit_fails_where_the_trace_says():
    trace = make([(0, 1, 600, 0), (0, 2, 300, 0), (0, 3, 500, 0), (1, 3, 500, 0)])
    run = memory.replay(trace, memory.Pool(limit=1024)).median
    assert (run.failures, run.first_failure, run.skipped) == (1, 2, 1)
    assert run.utilisation == 900 / 1024
    assert run.operations == 3
    assert (run.left, run.left_bytes) == (2, 900)
    assert run.requested_per_in_use == 900 / 960
    assert run.requested_per_reserved == 900 / run.peak_reserved_bytes
    roomy = memory.replay(trace, memory.system()).median
    assert (roomy.failures, roomy.first_failure, roomy.utilisation) == (0, None, None)


def test_reserved_bytes_are_those_of_the_run():
    rows = [(0, place, 1000, 0) for place in range(1, 11)]
    trace = make(rows + [(1, place, 1000, 0) for place in range(1, 11)])
    resource = memory.system()
    resource.allocate(2**20).free()  # a peak from before
    for _ in range(2):
        run = memory.replay(trace, resource).median
        assert run.peak_reserved_bytes == run.peak_in_use_bytes == 10 * 1024
    pool = memory.Pool()
    first, second = memory.replay(trace, pool, repeats=2).runs
    assert first.peak_reserved_bytes == pool.stats().peak_reserved_bytes
    assert second.peak_reserved_bytes == first.peak_reserved_bytes


class Slow:
    """Takes its time before it says that there is no more memory."""

    def __call__(self, nbytes):
        time.sleep(nbytes / 1e6)
        return False


def test_times_are_those_of_the_operations():
    slow = memory.failure_callback(memory.Pool(limit=64), Slow())
    trace = make([(0, place, 1000 * place, 0) for place in (65, 5, 20, 10)])
    run = memory.replay(trace, slow).median
    assert run.failures == run.operations == 4
    assert 10e6 <= run.p50_ns < run.p99_ns == run.max_ns
    assert run.max_ns >= 65e6
    assert 0.1 <= run.seconds < 30


def test_quantiles_are_times_that_were_taken():
    trace = make([(place % 2, 1, 64, 0) for place in range(2000)])
    run = memory.replay(trace, memory.Pool()).median
    assert 0 < run.p50_ns <= run.p99_ns <= run.p999_ns <= run.max_ns
    assert run.max_ns / 1e9 <= run.seconds
    assert run.p50_ns * 1000 <= run.seconds * 1e9


def test_a_report_is_a_table_that_fits_a_terminal():
    trace = make([(0, place, 2**39, 1) for place in range(1, 100)])
    resource = memory.Pool(memory.simulated("8TiB"), limit="7TiB", name="n" * 100)
    for repeats in (1, 3):
        report = memory.replay(trace, resource, repeats=repeats)
        lines = str(report).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("Replay into Pool 'nnn")
        table = "\n".join(lines)
        for word in ("operations", "failures", "first failure", "utilisation"):
            assert word in table
        assert ("median" in table) is (repeats > 1)
        row = next(line for line in lines if "operations" in line).split()
        assert row[1:] == ["99"] * len(row[1:])
        assert len(row) == (4 if repeats > 1 else 2)


def test_the_median_is_that_of_each_figure():
    figures = dict.fromkeys(ReplayRun.__dataclass_fields__, 0)
    runs = tuple(
        ReplayRun(**(figures | {"max_ns": most, "first_failure": row}))
        for most, row in ((5, None), (1, 7), (9, 3), (2, None))
    )
    median = ReplayReport("x", runs).median
    assert (median.max_ns, median.first_failure) == (median_low([5, 1, 9, 2]), 3)
    assert median.requested_per_in_use == 1


def test_nothing_to_play():
    for trace in (make([]), make([(2, 0, 5, 0)])):
        report = memory.replay(trace, memory.Pool())
        run = report.median
        assert (run.operations, run.seconds, run.max_ns) == (0, 0, 0)
        assert "operations" in str(report)


def test_a_file_is_played(tmp_path):
    path = tmp_path / "log.csv"
    with memory.logging(memory.Pool(), path) as logged:
        logged.allocate(1000).free()
        logged.allocate(500).free()
    for kind in (path, str(path)):
        assert memory.replay(kind, memory.system()).median.peak_requested_bytes == 1000
    with pytest.raises(FileNotFoundError):
        memory.replay(tmp_path / "missing", memory.system())
    path.write_text("nonsense")
    with pytest.raises(FormatError):
        memory.replay(path, memory.system())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"repeats": 0}, ValueError),
        ({"repeats": -1}, ValueError),
        ({"repeats": 1.0}, TypeError),
        ({"repeats": True}, TypeError),
        ({"touch": 1}, TypeError),
        ({"resource": None}, TypeError),
        ({"resource": "pool"}, TypeError),
        ({"trace": None}, TypeError),
        ({"trace": 3.5}, TypeError),
        ({"resource": memory.simulated(64), "touch": True}, ValueError),
    ],
)
def test_arguments_that_are_none(arguments, error):
    usual = {"trace": EVERYTHING, "resource": memory.system()}
    with pytest.raises(error):
        memory.replay(**(usual | arguments))


@pytest.mark.parametrize("error", [KeyError, MemoryError, KeyboardInterrupt])
def test_what_a_callback_raises_ends_the_run(error):
    def fail(nbytes):
        raise error("no")

    pool = memory.Pool(limit=1024)
    trace = make([(0, 1, 500, 0), (0, 2, 500, 0), (0, 3, 500, 0)])
    with pytest.raises(error, match="no"):
        memory.replay(trace, memory.failure_callback(pool, fail))
    assert pool.stats().current_bytes == 0
    pool.check()


def test_a_block_that_somebody_else_frees_ends_the_run():
    pool = memory.system()

    def thief(nbytes):
        address = tracked.live()[0].address
        tracked.deallocate(address, 500)
        return False

    tracked = memory.tracking(memory.limiting(pool, 1024))
    rows = [(0, place, 500, 0) for place in (1, 2, 3)]
    trace = make([*rows, (1, 1, 500, 0), (1, 2, 500, 0)])
    with pytest.raises(InvalidFreeError):
        memory.replay(trace, memory.failure_callback(tracked, thief))
    assert pool.stats().current_bytes == 0


def test_a_signal_ends_a_long_run():
    count = 3_000_000
    trace = Trace(
        action=np.arange(count) % 2,
        address=np.ones(count, np.uint64),
        nbytes=np.full(count, 100_000),
    )
    pool = memory.Pool()
    before = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    before.start()
    with pytest.raises(KeyboardInterrupt):
        memory.replay(trace, pool, repeats=1000)
    before.join()
    assert pool.stats().current_bytes == 0


def test_a_run_can_be_tracked():
    tracked = memory.tracking(memory.Pool(limit="1GiB"))
    memory.replay(EVERYTHING, tracked)
    trace = tracked.trace()
    kept = EVERYTHING.action != 2
    assert trace.action.tolist()[:-2] == EVERYTHING.action[kept].tolist()
    assert trace.nbytes.tolist()[:-2] == EVERYTHING.nbytes[kept].tolist()
    assert trace.action.tolist()[-2:] == [1, 1]  # what it left


def test_a_first_failure_in_row_0_is_told():
    trace = Trace(action=[0], address=[1], nbytes=[5000])
    report = memory.replay(trace, memory.Pool(limit=1024))
    assert report.median.first_failure == 0
    assert re.search(r"first failure +row 0\n", str(report))


def test_files_are_told_apart_by_their_first_bytes(tmp_path):
    pool = memory.tracking(memory.Pool())
    blocks = [pool.allocate(100 + n) for n in range(3)]
    blocks.pop().free()
    trace = pool.trace()
    trace.to_csv(tmp_path / "a")
    trace.save(tmp_path / "b")
    memory.snapshot(tmp_path / "c", pool)
    for name in "abc":
        run = memory.replay(tmp_path / name, memory.Pool()).median
        assert (run.operations, run.left, run.left_bytes) == (4, 2, 201)
    (tmp_path / "d").write_bytes(b"\x80nothing")
    with pytest.raises(FormatError):
        memory.replay(tmp_path / "d", memory.Pool())
