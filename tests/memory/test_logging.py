"""Logs: rows that RMM's replay benchmark reads, and files that go wrong."""

from __future__ import annotations

import datetime
import errno
import gc
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from memcfg import memory
from memcfg.errors import ResourceExhaustedError

HEADER = "Thread,Time,Action,Pointer,Size,Stream"


class Event(NamedTuple):
    """What RMM's parser makes of a row."""

    thread: int
    time: str
    action: str
    pointer: int
    size: int
    stream: int


def unsigned(text: str, base: int = 10) -> int:
    """A number as std::stoull reads it, but all of the text and nothing else."""
    assert re.fullmatch(r"[0-9]+" if base == 10 else r"(0x)?[0-9a-f]+", text)
    number = int(text, base)
    assert number < 2**64
    return number


def parse(path: Path) -> list[Event]:
    """Read a log as RMM's benchmarks/utilities/log_parser.hpp does.

    Columns go by their names in the first line; thread, size and stream are decimal, a
    pointer is hexadecimal or "(nil)", an action one of three.
    """
    text = path.read_text(encoding="ascii")
    assert text.endswith("\n")
    header, *lines = text.splitlines()
    names = header.split(",")
    events = []
    for line in lines:
        row = dict(zip(names, line.split(","), strict=True))
        assert row["Action"] in ("allocate", "free", "allocate failure")
        pointer = row["Pointer"]
        events.append(
            Event(
                unsigned(row["Thread"]),
                row["Time"],
                row["Action"],
                0 if pointer == "(nil)" else unsigned(pointer, 16),
                unsigned(row["Size"]),
                unsigned(row["Stream"]),
            )
        )
    return events


def require_playable(events: list[Event]) -> int:
    """Go through a log as RMM's replay does; how many blocks it leaves."""
    out: dict[int, int] = {}
    for event in events:
        if event.action == "allocate":
            assert event.pointer not in out
            out[event.pointer] = event.size
        elif event.action == "free":
            assert out.pop(event.pointer) == event.size
    return len(out)


def test_rows_are_those_of_rmm(tmp_path):
    path = tmp_path / "log.csv"
    logged = memory.logging(memory.Pool(limit="1MiB"), path)
    block = logged.allocate(100, tag="not in the log")
    address = block.address
    with pytest.raises(ResourceExhaustedError):
        logged.allocate(2**21)
    with pytest.raises(ValueError, match="least"):
        logged.allocate(0)
    block.free()
    logged.close()
    assert path.read_text().splitlines()[0] == HEADER
    rows = [(each.action, each.pointer, each.size) for each in parse(path)]
    assert rows == [
        ("allocate", address, 100),
        ("allocate failure", 0, 2**21),
        ("free", address, 100),
    ]
    assert {(each.thread, each.stream) for each in parse(path)} == {
        (threading.get_native_id(), 0)
    }


def test_times_are_local_and_of_the_day(tmp_path):
    path = tmp_path / "log.csv"
    before = datetime.datetime.now()
    with memory.logging(memory.Pool(), path) as logged:
        logged.allocate(64).free()
    after = datetime.datetime.now()
    for event in parse(path):
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6}", event.time)
        clock = datetime.time.fromisoformat(event.time)
        moment = datetime.datetime.combine(before.date(), clock)
        if moment < before - datetime.timedelta(hours=12):
            moment += datetime.timedelta(days=1)  # midnight has passed
        slack = datetime.timedelta(milliseconds=1)
        assert before - slack <= moment <= after + slack


def test_threads_write_whole_rows_in_an_order_that_can_be_played(tmp_path):
    path = tmp_path / "log.csv"
    logged = memory.logging(memory.Pool(), path)

    def work(number):
        held = []
        for step in range(500):
            held.append(logged.allocate(64 + number + step))
            if step % 3:
                held.pop(0).free()
        held.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logged.close()
    events = parse(path)
    assert require_playable(events) == 0
    assert len(events) == 4 * 1000
    assert len({event.thread for event in events}) == 4
    assert memory.Trace.from_csv(path).thread.tolist() == [
        each.thread for each in events
    ]


def test_rows_wait_until_they_are_flushed(tmp_path):
    path = tmp_path / "log.csv"
    logged = memory.logging(memory.system(), path)
    assert path.read_text() == HEADER + "\n"
    block = logged.allocate(64)
    assert len(parse(path)) == 0
    logged.flush()
    assert len(parse(path)) == 1
    block.free()
    for _ in range(2000):
        logged.allocate(64).free()
    assert path.stat().st_size > 2**16
    logged.close()
    assert len(parse(path)) == 4002


def test_after_closing_it_goes_on_and_logs_nothing(tmp_path):
    path = tmp_path / "log.csv"
    with memory.logging(memory.Pool(), path) as logged:
        block = logged.allocate(64)
        assert not logged.closed
    assert logged.closed
    block.free()
    logged.allocate(64).free()
    for act in (logged.flush, logged.__enter__):
        with pytest.raises(ValueError, match="closed"):
            act()
    logged.close()
    assert [event.action for event in parse(path)] == ["allocate"]
    logged.check()


def test_it_is_written_when_it_is_forgotten(tmp_path):
    path = tmp_path / "log.csv"
    logged = memory.logging(memory.Pool(), path)
    block = logged.allocate(64)
    del logged
    assert len(parse(path)) == 0  # the block has it
    del block
    gc.collect()
    assert [event.action for event in parse(path)] == ["allocate", "free"]


def test_a_file_that_is_there_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("precious")
    with pytest.raises(FileExistsError) as caught:
        memory.logging(memory.Pool(), path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "precious"
    memory.logging(memory.Pool(), path, overwrite=True).close()
    assert path.read_text() == HEADER + "\n"


def test_two_logs_are_not_in_one_file(tmp_path):
    path = tmp_path / "log.csv"
    first = memory.logging(memory.Pool(), path)
    first.allocate(64).free()
    (tmp_path / "link").symlink_to(path)
    for other in (path, tmp_path / "link"):
        with pytest.raises(OSError, match="another log") as caught:
            memory.logging(memory.Pool(), other, overwrite=True)
        assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, str(other))
    first.close()
    assert len(parse(path)) == 2
    memory.logging(memory.Pool(), path, overwrite=True).close()
    assert len(parse(path)) == 0


def test_of_two_threads_that_open_a_log_one_gets_the_file(tmp_path):
    path = tmp_path / "log.csv"
    path.touch()
    for _ in range(20):
        start = threading.Barrier(2)

        def open_log(start=start):
            start.wait(timeout=60)
            try:
                return memory.logging(memory.Pool(), path, overwrite=True)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                return None

        with ThreadPoolExecutor(2) as workers:
            futures = [workers.submit(open_log) for _ in range(2)]
            logs = [log for future in futures if (log := future.result(60))]
        assert len(logs) == 1
        logs[0].close()


def test_a_log_does_not_go_over_a_mapped_array(tmp_path):
    array = memory.mapped_array(tmp_path / "x", (1000,))
    array[:] = 1
    with pytest.raises(OSError, match="owner") as caught:
        memory.logging(memory.Pool(), tmp_path / "x", overwrite=True)
    assert caught.value.errno == errno.EBUSY
    assert (array == 1).all()


def test_a_log_is_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="pipe") as caught:
        memory.logging(memory.Pool(), tmp_path / "pipe", overwrite=True)
    os.close(reader)
    assert caught.value.errno == errno.EINVAL


ROOM_AGAIN = """
import resource, sys, warnings
from memcfg import memory
warnings.simplefilter("ignore")
log = memory.logging(memory.Pool(), sys.argv[1])
most = resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
for _ in range(3000):
    log.allocate(100).free()
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for act in (log.flush, log.flush, log.close):
    try:
        act()
        sys.exit("lost rows are not told")
    except OSError as error:
        print(error)
"""


def test_rows_before_the_first_lost_one_are_written_when_there_is_room(tmp_path):
    path = tmp_path / "log.csv"
    done = subprocess.run(
        [sys.executable, "-c", ROOM_AGAIN, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lost = int(re.findall(r"rows lost: (\d+)", done.stdout)[-1])
    assert lost > 0
    assert len(parse(path)) + lost == 6000


@pytest.mark.parametrize(
    ("name", "error"),
    [("missing/log.csv", FileNotFoundError), ("", IsADirectoryError)],
)
def test_paths_where_no_file_can_be(tmp_path, name, error):
    with pytest.raises(error) as caught:
        memory.logging(memory.Pool(), tmp_path / name, overwrite=True)
    assert caught.value.filename == str(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        memory.logging(memory.Pool(), tmp_path / "log.csv")


def test_paths_of_every_kind(tmp_path):
    for number, kind in enumerate((str, os.fsencode, Path)):
        path = tmp_path / f"{number}.csv"
        logged = memory.logging(memory.Pool(), kind(path))
        assert os.fspath(logged.path) == os.fspath(kind(path))
        logged.close()
        assert path.exists()


@pytest.mark.parametrize(
    "arguments",
    [(None, "x"), (3, "x"), ("pool", "x"), (memory.Pool(), 3), (memory.Pool(), None)],
)
def test_arguments_of_other_types(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError):
        memory.logging(*arguments)
    with pytest.raises(TypeError):
        memory.logging(memory.Pool(), "x", overwrite=1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_when_the_log_is_opened():
    with pytest.raises(OSError, match="No space left") as caught:
        memory.logging(memory.Pool(), "/dev/full", overwrite=True)
    assert caught.value.filename == "/dev/full"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# A file may have 20,000 bytes; SIGXFSZ is ignored, as Python does.
FULL = """
import resource, sys, warnings
from memcfg import memory
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
logged = memory.logging(memory.Pool(), sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3000):
        logged.allocate(64).free()
    for _ in range(100):
        pass  # the warning comes between two steps of Python
print([(each.category.__name__, sys.argv[1] in str(each.message)) for each in caught])
"""


def test_a_disk_that_fills_up_is_told_and_stops_nobody(tmp_path):
    path = tmp_path / "log.csv"
    program = FULL + (
        "for end in logged.flush, logged.flush, logged.close:\n"
        "    try: end()\n"
        "    except OSError as error:\n"
        "        print(error.errno, error.filename == sys.argv[1], error.strerror)\n"
        "logged.close()\n"
        "logged.check()\n"
        "print(logged.stats().allocation_count)\n"
    )
    done = run(program, str(path))
    assert done.returncode == 0, done.stderr
    warned, *errors, count = done.stdout.splitlines()
    assert warned == "[('RuntimeWarning', True)]"
    assert len(errors) == 3
    assert all(
        line.startswith("27 True File too large (rows lost: ") for line in errors
    )
    assert count == "3000"
    lost = int(errors[-1].split()[-1].rstrip(")"))
    events = parse(path)  # whole rows only
    assert path.stat().st_size <= 20_000
    assert len(events) + lost == 6000
    assert require_playable(events) <= 1


def test_a_log_that_cannot_be_written_is_reported_when_it_is_forgotten(tmp_path):
    program = FULL + (
        "sys.unraisablehook = lambda it: print(it.exc_type.__name__, it.exc_value)\n"
        "del logged\n"
    )
    done = run(program, str(tmp_path / "log.csv"))
    assert done.returncode == 0, done.stderr
    assert (
        "OSError [Errno 27] File too large (rows lost: " in done.stdout.splitlines()[-1]
    )


def test_a_warning_may_be_an_error(tmp_path):
    program = FULL.replace('"always"', '"error"')
    done = run(program, str(tmp_path / "log.csv"))
    assert done.returncode != 0
    assert "RuntimeWarning: the log" in done.stderr


def test_a_program_that_ends_has_its_log(tmp_path):
    path = tmp_path / "log.csv"
    program = (
        "import builtins, sys\n"
        "from memcfg import memory\n"
        "builtins.kept = logged = memory.logging(memory.Pool(), sys.argv[1])\n"
        "builtins.cycle = [logged.allocate(64), logged]\n"
        "builtins.cycle.append(builtins.cycle)\n"
        "block = logged.allocate(128)\n"
    )
    done = run(program, str(path))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [(event.action, event.size) for event in parse(path)]
    assert rows[:2] == [("allocate", 64), ("allocate", 128)]


def test_what_is_flushed_survives_a_kill(tmp_path):
    path = tmp_path / "log.csv"
    program = (
        "import os, sys\n"
        "from memcfg import memory\n"
        "logged = memory.logging(memory.Pool(), sys.argv[1])\n"
        "for _ in range(100): logged.allocate(64).free()\n"
        "logged.flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert run(program, str(path)).returncode == -9
    assert len(parse(path)) == 200


def test_a_child_leaves_its_parents_log_alone(tmp_path):
    path = tmp_path / "log.csv"
    program = (
        "import os, sys\n"
        "from memcfg import memory\n"
        "logged = memory.logging(memory.Pool(), sys.argv[1])\n"
        "block = logged.allocate(100)\n"
        "for way in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        for _ in range(2000): logged.allocate(64).free()\n"
        "        block.free()\n"
        "        if way == 0: logged.flush()\n"
        "        if way == 1: logged.close()\n"
        "        sys.exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "block.free()\n"
    )
    done = run(program, str(path))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [(event.action, event.size) for event in parse(path)]
    assert rows == [("allocate", 100), ("free", 100)]


def test_two_logs_at_a_time(tmp_path):
    inner = memory.logging(memory.Pool(), tmp_path / "inner.csv")
    outer = memory.logging(inner, tmp_path / "outer.csv")
    outer.allocate(100).free()
    inner.allocate(200).free()
    for logged in (outer, inner):
        logged.close()
    assert [event.size for event in parse(tmp_path / "inner.csv")] == [100] * 2 + [
        200
    ] * 2
    assert [event.size for event in parse(tmp_path / "outer.csv")] == [100] * 2
