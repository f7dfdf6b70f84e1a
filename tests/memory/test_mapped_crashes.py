"""Files when processes end, fork, race, or cut them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from memcfg import memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

START = """
import os, random, signal, sys, time
import numpy as np
from memcfg import memory
random.seed(4)
"""


def run_python(source: str, folder) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that may die, in a folder."""
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(source)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ended_well(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# Writes the numbers 1, 2, 3, ... into the rows of a file in turns, flushes now and
# then, and says so; until it is killed, most often amid what it has not flushed. Only
# what it said last must be in the file; each row may have later numbers.
KILLS = """
ROWS, WIDTH, LENGTH = 64, 513, 64 * 513

def write(data, pipe):
    for number in range(1, 10**9):
        data[number % ROWS] = number
        if number % random.randint(1, 60) == 0:
            file.flush()
            data[(number + 1) % ROWS] = number + 1  # flushed by nobody yet
            os.write(pipe, number.to_bytes(8, "little"))

def open_file(way):
    global file
    if way == 0:
        file = memory.mapped_array("data", (ROWS, WIDTH), "int64")
        return file
    file = memory.mmap_file("data", LENGTH * 8)
    if way == 1:
        return np.frombuffer(file.allocate(LENGTH * 8), "int64").reshape(ROWS, WIDTH)
    with memory.numpy_allocator(file):
        return np.empty((ROWS, WIDTH), "int64")

def last_flushed(pipe):
    said = b""
    while part := os.read(pipe, 2**16):
        said += part
    assert len(said) % 8 == 0
    return int.from_bytes(said[-8:], "little")

def verify(flushed):
    assert os.stat("data").st_size == LENGTH * 8
    data = np.fromfile("data", "int64").reshape(ROWS, WIDTH)
    for row in range(ROWS):
        expected = flushed - (flushed - row) % ROWS
        if expected <= 0:
            continue
        assert (data[row] >= expected).all(), (row, expected, data[row])
        assert (data[row] % ROWS == row).all()

furthest = 0
for attempt in range({kills}):
    if os.path.exists("data"):
        os.unlink("data")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        random.seed(attempt)
        try:
            write(open_file(attempt % 3), writer)
        finally:
            os._exit(1)
    os.close(writer)
    for _ in range(random.randint(1, 12)):
        first = os.read(reader, 8)
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    flushed = last_flushed(reader) or int.from_bytes(first, "little")
    os.close(reader)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    verify(flushed)
    furthest = max(furthest, flushed)
    again = memory.mapped_array("data", dtype="int64")  # nobody owns it any more
    assert again.size == LENGTH
    del again
assert os.listdir() == ["data"]
print(furthest > ROWS)
"""


def test_what_was_flushed_survives_kills_at_100_random_instants(tmp_path, tenths):
    """Everything that was flushed is in the file when a process is killed.

    It shows that the blocks are the file's own pages, at the right places, that no row
    is torn into one that nobody wrote, and that the file is free again. It cannot show
    that flushing was needed: pages of a shared mapping survive their process anyway.
    That a flush asks the system to write the pages, and then the file, is what
    `page_flushes` of tests/native/test_files.cpp counts.
    """
    program = KILLS.replace("{kills}", str(10 * tenths))
    assert ended_well(run_python(program, tmp_path)) == "True\n"


def test_kills_while_files_are_made_leave_old_or_new_ones(tmp_path):
    done = run_python(
        """
        def change():
            for number in range(10**9):
                way = random.randrange(4)
                if way == 0:
                    memory.mmap_file("data", 70_000, overwrite=True).close()
                elif way == 1:
                    os.truncate("data", 0)
                    memory.mmap_file("data", 50_000).close()
                elif way == 2:
                    memory.mmap_file("data", random.choice([70_000, 90_000]),
                                     overwrite=True).close()
                else:
                    memory.mmap_file("passing", 10_000, overwrite=True,
                                     delete=True).close()

        open("data", "wb").write(b"old" * 1000)
        sizes = set()
        for attempt in range(60):
            child = os.fork()
            if child == 0:
                random.seed(attempt)
                try:
                    change()
                finally:
                    os._exit(1)
            time.sleep(random.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
            bytes = open("data", "rb").read()
            sizes.add(len(bytes))
            assert bytes in (b"old" * 1000, b"\\0" * len(bytes))
            assert len(bytes) in (0, 3000, 50_000, 70_000, 90_000)
            others = {name for name in os.listdir() if not name.startswith(".memcfg-")}
            assert others <= {"data", "passing"}
            memory.mmap_file("data", 100_000, overwrite=True).close()
            memory.mmap_file("data", 70_000, overwrite=True).close()
        print(len(sizes) > 2)
        """,
        tmp_path,
    )
    assert ended_well(done) == "True\n"


def test_a_file_that_another_cuts_ends_the_process_that_touches_it(tmp_path):
    done = run_python(
        """
        array = memory.mapped_array("data", 10_000)
        os.truncate("data", 0)
        array.flush()
        print("flushed", flush=True)
        array.sum()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "flushed\n")


FORK = """
def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        work()
        sys.exit(0)  # all objects go, and all handlers of exits run
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_blocks_of_a_forked_child_are_its_own(tmp_path):
    done = run_python(
        FORK
        + textwrap.dedent(
            """
            file = memory.mmap_file("data", 2**20, delete=True)
            pool = memory.Pool(file)
            blocks = [file.allocate(5000), pool.allocate(5000)]
            views = [np.frombuffer(block, "u1") for block in blocks]
            with memory.numpy_allocator(file):
                views.append(np.empty(5000, "u1"))
            for view in views:
                view[:] = 1
            def work():
                for view in views:
                    assert view.min() == view.max() == 1
                    view[:] = 2
                with memory.numpy_allocator(pool):
                    more = np.full(5000, 2, "u1")
                for resource in (file, pool):
                    resource.allocate(5000).free()
                    resource.check()
                for refused in (file.flush, file.evict):
                    try:
                        refused()
                        raise SystemExit(3)
                    except RuntimeError as error:
                        assert "child of a fork" in str(error)
                try:
                    memory.mmap_file("data", 2**20)
                    raise SystemExit(4)
                except BlockingIOError:
                    pass
                assert all(view.min() == 2 for view in views)
            for _ in range(3):
                in_a_child(work)
            assert all(view.max() == 1 for view in views)
            assert os.path.exists("data")
            assert 2 not in open("data", "rb").read()
            file.flush()
            """
        ),
        tmp_path,
    )
    assert ended_well(done) == ""
    assert list(tmp_path.iterdir()) == []


def test_mapped_arrays_are_shared_with_forked_children(tmp_path):
    done = run_python(
        FORK
        + textwrap.dedent(
            """
            array = memory.mapped_array("data", (4, 1000), delete=True)
            for lane in range(4):
                def work():
                    array[lane] = lane + 1
                    array.flush()
                    assert array[lane].evict() >= 0
                    assert memory.owner_of(array).stats().allocation_count == 1
                in_a_child(work)
            assert array.sum() == 1000 * (1 + 2 + 3 + 4)
            assert os.path.exists("data")
            array.flush()
            """
        ),
        tmp_path,
    )
    assert ended_well(done) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_free_when_its_owner_has_gone_though_children_live(tmp_path):
    done = run_python(
        """
        for end in ("close", "kill"):
            reader, writer = os.pipe()
            closed_reader, closed_writer = os.pipe()
            owner = os.fork()
            if owner == 0:
                array = memory.mapped_array("data", 1000)
                if os.fork() == 0:  # the child's copy of the file is closed here
                    os.write(writer, os.getpid().to_bytes(8, "little"))
                    time.sleep(60)
                    os._exit(0)
                if end == "close":
                    del array
                    os.write(closed_writer, b"closed")
                time.sleep(60)
                os._exit(0)
            child = int.from_bytes(os.read(reader, 8), "little")
            if end == "close":
                assert os.read(closed_reader, 6) == b"closed"
            else:
                os.kill(owner, signal.SIGKILL)
                os.waitpid(owner, 0)
            memory.mapped_array("data", 1000)
            os.kill(child, signal.SIGKILL)
            if end == "close":
                os.kill(owner, signal.SIGKILL)
                os.waitpid(owner, 0)
        """,
        tmp_path,
    )
    assert ended_well(done) == ""


def test_one_of_many_processes_gets_the_file(tmp_path):
    done = run_python(
        """
        for attempt in range(15):
            start = time.monotonic() + 0.02
            until, end = os.pipe()
            for _ in range(4):
                if os.fork() == 0:
                    os.close(end)
                    while time.monotonic() < start:
                        pass
                    try:
                        file = memory.mmap_file("data", 5000 + attempt)
                        os.read(until, 1)  # until the others have failed
                        os._exit(1)
                    except BlockingIOError:
                        os._exit(0)
                    finally:
                        os._exit(5)
            ends = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)]
            os.close(end)
            ends.append(os.waitstatus_to_exitcode(os.wait()[1]))
            os.close(until)
            assert ends == [0, 0, 0, 1], ends
            assert os.stat("data").st_size == 5000 + attempt
            if attempt % 2:
                os.unlink("data")
        """,
        tmp_path,
    )
    assert ended_well(done) == ""


@pytest.mark.parametrize(
    "leave",
    [
        "",
        "sys.modules['memcfg'].kept = [array, view]",
        "loop = [array]; loop.append(loop)",
        "sys.exit(0)",
        "import threading; threading.Thread(target=lambda: time.sleep(9), daemon=True)"
        ".start()",
        "block.detach()",
        "file.close() if block.free() is None else None",
    ],
)
def test_the_interpreter_ends_with_files_open(tmp_path, leave):
    done = run_python(
        f"""
        file = memory.mmap_file("passing", 10_000, delete=True)
        block = file.allocate(100)
        array = memory.mapped_array("stays", 100)
        view = array[1:]
        view[:] = 1
        {leave}
        """,
        tmp_path,
    )
    assert ended_well(done) == ""
    assert [each.name for each in tmp_path.iterdir()] == ["stays"]
    assert np.fromfile(tmp_path / "stays").tolist() == [0] + [1] * 99


def test_a_failure_at_the_end_is_told(tmp_path):
    done = run_python(
        """
        file = memory.mmap_file("folder/passing", 10_000, delete=True)
        os.chmod("folder", 0o555)
        if os.geteuid() == 0:
            os.setuid(65534)
        del file
        print("after", flush=True)
        """,
        make_folder(tmp_path),
    )
    assert (done.returncode, done.stdout) == (0, "after\n")
    assert "PermissionError" in done.stderr
    assert "passing" in done.stderr


def make_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o777)
    return tmp_path


@pytest.mark.parametrize(
    "call",
    [
        "file.allocate(5000).free()",
        "pool.allocate(500).free(); pool.allocate(2**17).free(); pool.trim()",
        "file.stats(); file.owners(); file.reset_peak(); repr(file)",
        "array.flush()",
        "array.evict()",
        "memory.mmap_file(f'{os.getpid()}', 5000, delete=True)",
        "memory.mapped_array(f'{os.getpid()}', 500, overwrite=True, delete=True)",
    ],
)
def test_forks_amid_a_call(tmp_path, call):
    done = run_python(
        f"""
        import threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
        file = memory.mmap_file("file", 2**22, delete=True)
        pool = memory.Pool(file)
        array = memory.mapped_array("array", 10_000, delete=True)
        array[:] = 1
        stop = threading.Event()
        def repeat():
            while not stop.is_set():
                {call}
        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        for _ in range(15):
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # ends a child that hangs
                {call}
                {call}
                assert array.sum() == 10_000
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        thread.join()
        file.check()
        """,
        tmp_path,
    )
    assert ended_well(done) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_signals_do_not_disturb(tmp_path):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for number in range(40):
            path = tmp_path / str(number)
            with memory.mmap_file(path, "16MiB", delete=True) as file:
                assert os.stat(path).st_blocks * 512 >= 2**24
                with file.allocate(2**20) as block:
                    memoryview(block)[:] = b"x" * 2**20
                file.flush()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
