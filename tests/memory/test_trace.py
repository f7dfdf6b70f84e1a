"""Traces: what they are, and the files that they are read from and written to."""

from __future__ import annotations

import io
import math
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from memcfg import memory
from memcfg.errors import FormatError
from memcfg.memory import Trace

FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
ADDRESSES = st.sampled_from([0, 1, 64, 2**32, 2**63, 2**64 - 1])
TEXTS = st.text(st.characters(), max_size=5)
CALLS = st.tuples(TEXTS, st.integers(0, 2**40), TEXTS)


@st.composite
def traces(draw):
    """Any trace: blocks come and go at a few addresses."""
    tags = tuple(draw(st.lists(TEXTS, min_size=1, max_size=4)))
    stacks = tuple(draw(st.lists(st.lists(CALLS, max_size=3).map(tuple), max_size=3)))
    rows, out = [], {}
    for address in draw(st.lists(st.none() | ADDRESSES, max_size=20)):
        if address is None:
            rows.append((2, 0, draw(st.integers(1, 2**64 - 1))))
        elif address in out:
            rows.append((1, address, out.pop(address)))
        else:
            out[address] = draw(st.integers(1, 2**64 - 1))
            rows.append((0, address, out[address]))

    def column(values):
        return draw(st.lists(values, min_size=len(rows), max_size=len(rows)))

    return Trace(
        action=np.array([row[0] for row in rows], np.uint8),
        address=np.array([row[1] for row in rows], np.uint64),
        nbytes=np.array([row[2] for row in rows], np.uint64),
        thread=column(st.integers(0, 2**63 - 1)),
        seconds=column(st.floats(0, 86399.9)),
        tag=column(st.integers(0, len(tags) - 1)),
        stack=column(st.integers(-1, len(stacks) - 1)),
        tags=tags,
        stacks=stacks,
    )


def is_in_order(rows):
    """Whether rows are a record, one after the other."""
    out = {}
    for action, address, nbytes in rows:
        if action == 0:
            if address in out:
                return False
            out[address] = nbytes
        elif action == 1 and (address not in out or out.pop(address) != nbytes):
            return False
    return True


ROW = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 2))


@given(st.lists(ROW, max_size=12))
def test_a_record_is_in_order_or_refused_with_the_first_row_that_is_not(rows):
    def build():
        action, address, nbytes = zip(*rows, strict=True) if rows else ((), (), ())
        return Trace(action=action, address=address, nbytes=nbytes)

    if is_in_order(rows):
        trace = build()
        assert [*zip(trace.action, trace.address, trace.nbytes, strict=True)] == rows
        return
    first = next(end for end in range(len(rows)) if not is_in_order(rows[: end + 1]))
    with pytest.raises(ValueError, match=f"^row {first} (takes|frees) "):
        build()


GOOD = {"action": [0, 1], "address": [64, 64], "nbytes": [10, 10]}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"action": [0, 3]}, ValueError, "row 1 has 3 as its action, which"),
        ({"action": [-1, 0]}, ValueError, "row 0 has -1 as its action, which"),
        ({"action": [0.0, 1.0]}, TypeError, "action is a column of numbers"),
        ({"action": ["allocate", "free"]}, TypeError, "action is a column"),
        ({"action": [0]}, ValueError, "address has the shape"),
        ({"action": [[0, 1]]}, ValueError, "shape"),
        ({"address": [64]}, ValueError, "address has the shape"),
        ({"address": [-64, -64]}, ValueError, "row 0 has -64 as its address, which"),
        ({"address": [64, 2**64]}, TypeError, "address is a column"),
        ({"nbytes": [10, 10, 10]}, ValueError, "nbytes has the shape"),
        ({"nbytes": [0, 0]}, ValueError, "row 0 has 0 as its nbytes, which"),
        ({"nbytes": [10, 11]}, ValueError, "row 1 frees 11 bytes at 0x40, where"),
        ({"address": [64, 65]}, ValueError, "row 1 frees 0x41, which is not out"),
        ({"action": [0, 0]}, ValueError, "row 1 takes 0x40, which is out"),
        ({"thread": [0, -1]}, ValueError, "row 1 has -1 as its thread, which"),
        ({"thread": [0]}, ValueError, "thread has the shape"),
        ({"seconds": [0, math.nan]}, ValueError, "row 1 has nan as its time, which"),
        ({"seconds": [math.inf, 0]}, ValueError, "row 0 has inf as its time, which"),
        ({"seconds": ["0", "1"]}, TypeError, "seconds is a column"),
        ({"tag": [0, 1]}, ValueError, "row 1 has 1 as its tag, which"),
        ({"tag": [-1, 0]}, ValueError, "row 0 has -1 as its tag, which"),
        ({"stack": [0, 0]}, ValueError, "row 0 has 0 as its stack, which"),
        ({"stack": [-2, -1]}, ValueError, "row 0 has -2 as its stack, which"),
        ({"tags": ()}, ValueError, "row 0 has 0 as its tag, which"),
        ({"tags": (1,)}, TypeError, "a tag is a string"),
        ({"stacks": [[("a.py", 1)]]}, TypeError, "a call is"),
        ({"stacks": [[("a.py", "1", "f")]]}, TypeError, "a call is"),
        ({"stacks": [[3]]}, TypeError, "a call is"),
    ],
)
def test_columns_that_are_none(change, error, words):
    Trace(**GOOD)
    with pytest.raises(error, match=words):
        Trace(**(GOOD | change))


def test_it_is_a_value():
    action = np.array([0, 1], np.uint8)
    trace = Trace(action=action, address=[64, 64], nbytes=[10, 10], tags="weights")
    action[1] = 0
    assert trace.action.tolist() == [0, 1]
    assert trace.tags == ("weights",)
    assert len(trace) == 2
    assert repr(trace) == "<Trace: 1 allocations, 1 frees, 0 failures>"
    kinds = ("action", "address", "nbytes", "thread", "seconds", "tag", "stack")
    dtypes = [getattr(trace, kind).dtype.str[1:] for kind in kinds]
    assert dtypes == ["u1", "u8", "u8", "i8", "f8", "i4", "i4"]
    for kind in kinds:
        with pytest.raises(ValueError, match="read-only"):
            getattr(trace, kind)[0] = 1
    with pytest.raises(AttributeError):
        trace.action = action
    same = Trace(**GOOD, tags=("weights",))
    assert trace == same != Trace(**GOOD)
    assert trace != Trace(**GOOD, tags=("weights",), seconds=[0, 1])
    assert trace != "trace"
    with pytest.raises(TypeError):
        hash(trace)
    assert len(Trace(action=[], address=[], nbytes=[])) == 0


@FILES
@given(traces())
def test_what_is_saved_is_loaded(tmp_path, trace):
    path = tmp_path / "trace.npz"
    trace.save(path, overwrite=True)
    assert Trace.load(path) == trace


@FILES
@given(traces())
def test_what_is_written_as_csv_is_read(tmp_path, trace):
    seconds = np.sort(trace.seconds)
    path = tmp_path / "trace.csv"
    columns = {
        name: getattr(trace, name) for name in ("action", "address", "nbytes", "thread")
    }
    trace = Trace(**columns, seconds=seconds, tag=trace.tag, tags=trace.tags)
    trace.to_csv(path, overwrite=True)
    assume(not len(seconds) or np.diff(seconds, prepend=seconds[0]).max() < 43200)
    read = Trace.from_csv(path)
    np.testing.assert_allclose(read.seconds, seconds, atol=6e-7, rtol=0)
    assert read == Trace(**columns, seconds=read.seconds)


def test_files_that_are_there_are_refused(tmp_path):
    trace = Trace(**GOOD)
    for write in (trace.to_csv, trace.save):
        path = tmp_path / "file"
        path.write_text("precious")
        with pytest.raises(FileExistsError) as caught:
            write(path)
        assert caught.value.filename == str(path)
        assert path.read_text() == "precious"
        write(path, overwrite=True)
        assert path.read_bytes() != b"precious"
        with pytest.raises(FileNotFoundError):
            write(tmp_path / "missing" / "file")
    for read in (Trace.from_csv, Trace.from_snapshot, Trace.load):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing")
        with pytest.raises(IsADirectoryError):
            read(tmp_path)


# As RMM writes it, and as its guide shows it.
RMM = """\
Thread,Time,Action,Pointer,Size,Stream
2342727,15:47:02.841961,allocate,0x10012400000,1048576,0
2342728,15:47:02.841977,allocate failure,(nil),99999999999,0x2
2342728,15:47:02.841977,allocate failure,0x0,88,0
2342728,15:47:03,allocate,(nil),0,0
2342728,15:47:03.5,free,(nil),0,0
2342727,15:47:02.900000,free,0x10012400000,1048576,0
"""
GUIDE = """\
Thread,Time,Action,Pointer,Size,Stream
140573312345856,1634567890.123456,allocate,0x7f8a40000000,1024,0x7f8a38001020
140573312345856,1634567890.345678,deallocate,0x7f8a40000000,1024,0x7f8a38001020
"""


def read_csv(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    return Trace.from_csv(path)


def test_logs_of_rmm_are_read(tmp_path):
    trace = read_csv(tmp_path, RMM)
    assert trace.action.tolist() == [0, 2, 2, 1]
    assert trace.address.tolist() == [0x10012400000, 0, 0, 0x10012400000]
    assert trace.nbytes.tolist() == [1048576, 99999999999, 88, 1048576]
    assert trace.thread.tolist() == [2342727, 2342728, 2342728, 2342727]
    midnight = 15 * 3600 + 47 * 60
    np.testing.assert_allclose(
        trace.seconds - midnight, [2.841961, 2.841977, 2.841977, 2.9], atol=1e-9
    )
    guide = read_csv(tmp_path, GUIDE)
    assert guide.action.tolist() == [0, 1]
    assert guide.seconds.tolist() == [1634567890.123456, 1634567890.345678]


def test_columns_may_stand_in_any_order_with_others(tmp_path):
    text = (
        "Size,More,Pointer,Action,Thread,Time\n"
        "7,x,40,allocate,1,01:02:03:000004\n\n"
        "7,y,0x40,free,1,01:02:03:000005\n"
    )
    trace = read_csv(tmp_path, text)
    assert trace.address.tolist() == [64, 64]
    np.testing.assert_allclose(trace.seconds, [3723.000004, 3723.000005], atol=1e-9)


def test_a_log_may_pass_midnight(tmp_path):
    times = [
        "23:59:59.9",
        "23:59:59.8",
        "00:00:00.1",
        "23:59:59.95",
        "00:00:01",
        "09:00",
    ]
    times[-1] += ":00"
    times += ["18:00:00", "02:00:00"]
    rows = [f"1,{time},allocate failure,0x0,1,0\n" for time in times]
    text = "Thread,Time,Action,Pointer,Size,Stream\n" + "".join(rows)
    seconds = read_csv(tmp_path, text).seconds - 86400
    expected = [-0.1, -0.2, 0.1, -0.05, 1, 32400, 64800, 93600]
    np.testing.assert_allclose(seconds, expected, atol=1e-9)


HEAD = "Thread,Time,Action,Pointer,Size,Stream\n"
TAKE = "1,00:00:00.0,allocate,0x40,10,0\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 has not one column Thread"),
        ("Thread,Time,Action,Pointer,Stream\n", "line 1 has not one column Size"),
        ("Thread,Thread,Time,Action,Pointer,Size\n", "not one column Thread"),
        (HEAD + TAKE + "1,00:00:00.0,free,0x40\n", "line 3: 4 fields, not 6"),
        (HEAD + TAKE + "1,00:00:00.0,fr", "line 3: 3 fields, not 6"),
        (HEAD + "1,00:00:00.0,drop,0x40,10,0\n", "line 2: no action: 'drop'"),
        (HEAD + "-1,00:00:00.0,free,0x40,10,0\n", "line 2: no number below"),
        (HEAD + f"{2**63},00:00:00.0,free,0x40,10,0\n", "line 2: no number below"),
        (HEAD + "1,24:00:00.0,free,0x40,10,0\n", "line 2: no time: '24:00:00.0'"),
        (HEAD + "1,00:60:00.0,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,yesterday,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,-1.0,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,nan,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,00:00:00.0,free,0xx,10,0\n", "line 2: no pointer: '0xx'"),
        (HEAD + f"1,00:00:00.0,free,{2**64:#x},10,0\n", "line 2: no pointer"),
        (HEAD + "1,00:00:00.0,free,-64,10,0\n", "line 2: no pointer"),
        (HEAD + "1,00:00:00.0,free,6_4,10,0\n", "line 2: no pointer"),
        (HEAD + "1,00:00:00.0,free,,10,0\n", "line 2: no pointer"),
        (HEAD + "1,00:00:00;0,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,00:00:00.,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,0:00:00,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "1,,free,0x40,10,0\n", "line 2: no time"),
        (HEAD + "١,00:00:00,free,0x40,10,0\n", "line 2: no number below"),
        (HEAD + "1,00:00:00.0,free,0x40,ten,0\n", "line 2: no number below"),
        (HEAD + "1,00:00:00.0,free,0x40,1.5,0\n", "line 2: no number below"),
        (HEAD + f"1,00:00:00.0,free,0x40,{2**64},0\n", "line 2: no number below"),
        (HEAD + TAKE + "\n" + TAKE, "line 4 takes 0x40, which is out"),
        (HEAD + "1,00:00:00,free,0x40,10,0\n", "line 2 frees 0x40, which is not out"),
        (HEAD + TAKE + "1,00:00:00,free,0x40,9,0\n", "line 3 frees 9 bytes at 0x40"),
        (HEAD + '1,"00:00', "log.csv: "),
    ],
)
def test_logs_that_are_none(tmp_path, text, words):
    with pytest.raises(FormatError, match=r"log\.csv: ") as caught:
        read_csv(tmp_path, text)
    assert words in str(caught.value)


def test_a_log_of_other_letters_is_none(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"\xff\xfe" + HEAD.encode("utf-16-le"))
    with pytest.raises(FormatError, match=r"log\.csv"):
        Trace.from_csv(path)


def event(action, addr=None, size=None, **more):
    row = {"action": action, "stream": 0, **more}
    return row | ({} if addr is None else {"addr": addr}) | {"size": size}


def frame(line):
    return {"filename": "train.py", "line": line, "name": "step"}


def segment(*blocks, address=0x1000, device=0):
    return {
        "address": address,
        "total_size": sum(block["size"] for block in blocks),
        "device": device,
        "blocks": list(blocks),
    }


def block(size, state="inactive", **more):
    return {"size": size, "requested_size": size - 12, "state": state, **more}


def dump(tmp_path, traces, segments=(), **more):
    path = tmp_path / "snapshot.pickle"
    snapshot = {"device_traces": traces, "segments": list(segments), **more}
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_a_snapshot_is_read(tmp_path):
    shared = [frame(3), frame(9)]
    events = [
        event("segment_alloc", 0x1000, 4096, time_us=1),
        event("alloc", 0x1000, 500, time_us=2_000_000, frames=shared),
        event("alloc", 0x1200, 300, time_us=2_500_000, user_metadata="weights"),
        event("free_requested", 0x1000, 500, time_us=3_000_000),
        event("free_completed", 0x1000, 500, time_us=3_500_000),
        event("oom", None, 2**40, time_us=4_000_000, device_free=7, frames=shared),
        event("segment_map", 0x9000, 4096, time_us=5_000_000),
        event("snapshot", 0, 0, time_us=6_000_000),
    ]
    trace = Trace.from_snapshot(dump(tmp_path, [[], events]))
    assert trace.action.tolist() == [0, 0, 1, 2]
    assert trace.address.tolist() == [0x1000, 0x1200, 0x1000, 0]
    assert trace.nbytes.tolist() == [500, 300, 500, 2**40]
    assert trace.seconds.tolist() == [2, 2.5, 3.5, 4]
    assert [trace.tags[tag] for tag in trace.tag] == ["", "weights", "", ""]
    assert trace.stack.tolist() == [0, -1, 0, 0]
    assert trace.stacks == ((("train.py", 3, "step"), ("train.py", 9, "step")),)


def test_blocks_from_before_a_snapshots_history_stand_first(tmp_path):
    segments = [
        segment(
            block(512, "active_allocated", frames=[frame(1)]),
            block(1024),
            block(512, "active_pending_free"),
            block(512, "active_allocated"),
        ),
        segment(block(512, "active_allocated"), address=0x9000, device=1),
        segment(block(64, "active_allocated", address=0x8040), address=0x8000),
    ]
    events = [
        event("free_completed", 0x1200, 1000, time_us=7_000_000),
        event("alloc", 0x1800, 500, time_us=8_000_000),
    ]
    trace = Trace.from_snapshot(dump(tmp_path, [events], segments))
    assert trace.address.tolist() == [0x1000, 0x1200, 0x1600, 0x8040, 0x1200, 0x1800]
    assert trace.action.tolist() == [0, 0, 0, 0, 1, 0]
    assert trace.nbytes.tolist() == [500, 1000, 500, 52, 1000, 500]
    assert trace.seconds.tolist() == [7] * 5 + [8]
    assert trace.stacks == ((("train.py", 1, "step"),),)
    empty = Trace.from_snapshot(dump(tmp_path, [[]], segments[:1]))
    assert empty.action.tolist() == [0, 0, 0]


def test_the_device_is_chosen(tmp_path):
    one, two = [event("alloc", 64, 1)], [event("alloc", 64, 2)]
    path = dump(tmp_path, [[], one, two])
    assert Trace.from_snapshot(path, device=2).nbytes.tolist() == [2]
    assert len(Trace.from_snapshot(path, device=0)) == 0
    with pytest.raises(ValueError, match=r"devices \[1, 2\] have events"):
        Trace.from_snapshot(path)
    for device in (-1, 3):
        with pytest.raises(ValueError, match="no device"):
            Trace.from_snapshot(path, device=device)
    assert len(Trace.from_snapshot(dump(tmp_path, [[], []]))) == 0


class Bomb:
    """What an evil pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


class Plain:
    """A class of one's own."""


def test_a_pickle_runs_nothing(tmp_path):
    target = str(tmp_path / "boom")
    for evil in (
        Bomb(target),
        {"device_traces": [[Bomb(target)]]},
        Plain(),
        np.int64(3),
    ):
        path = tmp_path / "evil.pickle"
        path.write_bytes(pickle.dumps(evil))
        with pytest.raises(FormatError, match="it names"):
            Trace.from_snapshot(path)
    assert not Path(target).exists()
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.persistent_id = lambda thing: "outside" if thing == 3 else None
    pickler.dump([3])
    path.write_bytes(buffer.getvalue())
    with pytest.raises(FormatError, match="outside of it"):
        Trace.from_snapshot(path)


NESTED = b")" + b"2\x86" * 100  # a tuple twice in a tuple, a hundred times


@pytest.mark.parametrize(
    "code",
    [
        b"N" + b"r\xff\xff\xff\x7f",  # a memo of 2 ** 31 places
        b"\x8d" + b"\xff" * 7 + b"\x7f",  # a text of 2 ** 63 bytes
        b"\x96" + b"\0\0\0\0\x02\0\0\0",  # a bytearray of 8 GiB
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",  # a number of 2 GiB
        b"\x8b\xff\xff\xff\xff",  # of a negative number of bytes
        b"\x95" + b"\xff" * 7 + b"\x7f",  # a frame of 2 ** 63 bytes
        b"}" + NESTED + b"Ns",
        b"}(" + NESTED + b"Nu",
        b"(" + NESTED + b"N" + b"d",
        b"\x8f(" + NESTED + b"\x90",
        b"(" + NESTED + b"\x91",
        NESTED,
        b"}X\x0d\0\0\0device_traces" + NESTED + b"s",
        b"}X\x0d\0\0\0device_traces](" + NESTED + b"es",
        b"}X\x0d\0\0\0device_traces]]}X\4\0\0\0addr" + NESTED + b"saas",
        b"}X\x0d\0\0\0device_traces]]}X\6\0\0\0action" + NESTED + b"saas",
        b"0",
        b"1",
        b"2",
        b"\x86",
        b"e",
        b"Na",
        b"h\0",
        b"",
    ],
)
def test_few_bytes_do_not_take_much_memory_or_time(tmp_path, code):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\4" + code + b".")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"snapshot\.pickle"):
            Trace.from_snapshot(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_what_a_snapshot_says_many_times_over_is_not_read_many_times(tmp_path):
    many = [event("oom", 0, 1)] * 1000
    path = dump(tmp_path, [many] * 1000)
    assert len(Trace.from_snapshot(path, device=3)) == 1000
    shared = [block(512)] * 1000
    path = dump(tmp_path, [[]], [{"address": i, "blocks": shared} for i in range(1000)])
    with pytest.raises(FormatError, match="the same list of blocks"):
        Trace.from_snapshot(path)


@pytest.mark.parametrize(
    "snapshot",
    [
        3,
        [],
        {},
        {"device_traces": 3},
        {"device_traces": []},
        {"device_traces": [3]},
        {"device_traces": [[3]]},
        {"device_traces": [[{"addr": 1}]]},
        {"device_traces": [[event("alloc", 64)]]},
        {"device_traces": [[event("alloc", "here", 1)]]},
        {"device_traces": [[event("alloc", -64, 1)]]},
        {"device_traces": [[event("alloc", 64, 0)]]},
        {"device_traces": [[event("alloc", 64, -1)]]},
        {"device_traces": [[event("alloc", 2**64, 1)]]},
        {"device_traces": [[event("alloc", 64, 1), event("alloc", 64, 1)]]},
        {"device_traces": [[event("free_completed", 64, 1)] * 2]},
        {"device_traces": [[event("alloc", 64, 1, frames=[{"line": 3}])]]},
        {"device_traces": [[event("alloc", 64, 1, time_us="noon")]]},
        {"device_traces": [[]], "segments": [{"address": 3}]},
        {"device_traces": [[]], "segments": 3},
    ],
)
def test_snapshots_that_are_none(tmp_path, snapshot):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(FormatError, match=r"snapshot\.pickle"):
        Trace.from_snapshot(path)


@given(st.binary(max_size=60))
@FILES
def test_bytes_that_are_no_file_of_ours_are_refused(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    for read in (Trace.from_snapshot, Trace.load, Trace.from_csv):
        with pytest.raises(FormatError):
            read(path)


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "trace.npz"
    Trace(**GOOD).save(path)
    data = path.read_bytes()
    for end in range(0, len(data), 97):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError, match=r"trace\.npz is not a saved trace"):
            Trace.load(path)
    for place in range(0, len(data), 53):
        broken = bytearray(data)
        broken[place] ^= 0xFF
        path.write_bytes(bytes(broken))
        try:
            assert Trace.load(path) == Trace(**GOOD)  # a byte that says nothing
        except FormatError:
            continue


def test_an_archive_of_pickles_is_refused(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, memcfg_trace=np.array([Bomb(str(tmp_path / "boom"))], object))
    with pytest.raises(FormatError, match="not a saved trace"):
        Trace.load(path)
    assert not (tmp_path / "boom").exists()
    np.savez(path, memcfg_trace=np.array(99))
    with pytest.raises(FormatError, match="version 99"):
        Trace.load(path)
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(FormatError, match="not a saved trace"):
        Trace.load(tmp_path / "one.npy")


def test_an_archive_has_no_pickles(tmp_path):
    path = tmp_path / "trace.npz"
    Trace(**GOOD, tags=("a\0", "\udcff")).save(path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            array = np.lib.format.read_array(
                io.BytesIO(archive.read(name)), allow_pickle=False
            )
            assert array.dtype.kind in "uif"
    assert Trace.load(path).tags == ("a\0", "\udcff")


def test_a_log_and_a_trace_of_one_story_agree(tmp_path):
    path = tmp_path / "log.csv"
    tracked = memory.tracking(memory.Pool(limit="1MiB"))
    with memory.logging(tracked, path) as logged:
        held = [logged.allocate(100 * place + 1) for place in range(20)]
        for block in held[::2]:
            block.free()
        with pytest.raises(MemoryError):
            logged.allocate(2**21)
    trace, read = tracked.trace(), Trace.from_csv(path)
    for name in ("action", "address", "nbytes", "thread"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(read, name))
    difference = trace.seconds - read.seconds
    assert np.ptp(difference) < 0.1


def test_a_snapshot_of_ours_is_read(tmp_path):
    tracked = memory.tracking(memory.Pool(limit="1MiB"), stacks=True, max_entries=30)
    held = [tracked.allocate(100 * place + 1, tag="x") for place in range(20)]
    for block in held[::2]:
        block.free()
    with pytest.raises(MemoryError):
        tracked.allocate(2**21)
    held[1::2][3].free()
    memory.snapshot(tmp_path / "snapshot.pickle", tracked)
    trace, read = tracked.trace(), Trace.from_snapshot(tmp_path / "snapshot.pickle")
    for name in ("action", "address", "nbytes"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(read, name))
    np.testing.assert_allclose(trace.seconds, read.seconds, rtol=0, atol=1e-5)
    for row in range(len(trace)):
        stack = trace.stacks[trace.stack[row]]
        assert read.stacks[read.stack[row]][: len(stack)] == stack
