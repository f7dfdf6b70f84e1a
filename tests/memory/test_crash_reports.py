"""Crash reports of allocations: what they say, and what does not stop them."""

from __future__ import annotations

import gc
import json
import os
import stat
import subprocess
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest
from internals import add_to_crash_reports

import memcfg as mc
from memcfg import memory
from memcfg.errors import ResourceExhaustedError


@pytest.fixture
def folder(tmp_path):
    """A folder in which reports are made; it is missing."""
    mc.config.set_crash_reports(tmp_path / "reports" / "here")
    yield tmp_path / "reports" / "here"
    mc.config.reset()


@pytest.fixture
def pool():
    gc.collect()  # a pool of a test before would have a row of the same name
    return memory.Pool(limit="1MiB", name="scratch")


def refused(pool, nbytes=2**21):
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(nbytes)
    return caught.value


def reports(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def text(path):
    return (path / "report.txt").read_text(encoding="utf-8")


def document(path):
    return json.loads((path / "report.json").read_text(encoding="utf-8"))


def program(source, *args, **options):
    return subprocess.run(
        [sys.executable, "-c", source, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def test_none_is_written_unless_asked_for(tmp_path, monkeypatch, pool):
    monkeypatch.chdir(tmp_path)
    assert mc.config.get_crash_reports() is None
    error = refused(pool)
    assert not hasattr(error, "crash_report")
    assert reports(tmp_path) == []


def test_a_refused_allocation_writes_one(folder, pool):
    block = pool.allocate(500_000, tag="window")
    error = refused(pool)
    (path,) = reports(folder)
    assert error.crash_report == path
    assert error.__notes__ == [f"A crash report is in {path}"]
    assert path.name.startswith("memcfg-crash-")
    assert str(os.getpid()) in path.name.split("-")
    words, data = text(path), document(path)
    assert f"ResourceExhaustedError: {error.message}" in words
    assert "pool.allocate(nbytes)" in words
    assert "test_crash_reports.py" in data["error"]["at"]
    assert data["error"]["requested_bytes"] == 2**21
    assert data["error"]["owners"] == {"window": 500_032}
    (row,) = (each for each in data["memory"] if each["name"] == "scratch")
    assert (row["current_bytes"], row["limit_bytes"]) == (500_032, 2**20)
    assert data["blocks"][0]["tag"] == "window"
    assert data["versions"]["memcfg"] == mc.__version__
    assert data["failed_sections"] == []
    block.free()


def test_lines_have_at_most_80_columns(folder):
    long = memory.Pool(limit="1MiB", name="a name that has no end " * 9)
    blocks = [long.allocate(1000, tag="tag " * 40) for _ in range(3)]
    refused(long)
    (path,) = reports(folder)
    assert max(map(len, text(path).splitlines())) <= 80
    del blocks


def test_only_the_user_may_read_them(folder, pool):
    before = os.umask(0)
    try:
        refused(pool)
    finally:
        os.umask(before)
    (path,) = reports(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}


def test_there_are_a_few_in_a_process(folder, pool):
    for _ in range(6):
        refused(pool)
    assert len(reports(folder)) == 3  # in one second, with names of their own
    mc.config.set_crash_reports(folder, max_reports=1)
    refused(pool)
    refused(pool)
    assert len(reports(folder)) == 4


def test_threads_write_apart(folder, pool):
    mc.config.set_crash_reports(folder, max_reports=8)
    start = threading.Barrier(8)

    def work():
        start.wait()
        with suppress(ResourceExhaustedError):
            pool.allocate(2**21)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(reports(folder)) == 8
    assert all(document(each)["failed_sections"] == [] for each in reports(folder))


def test_arrays_of_a_full_pool(folder, pool):
    """The report takes no memory of the pool, which has none."""
    with pytest.raises(MemoryError) as caught, memory.numpy_allocator(pool):
        [np.zeros(1000) for _ in range(200)]
    (path,) = reports(folder)
    assert document(path)["failed_sections"] == []
    assert "np.zeros(1000)" in text(path)
    assert caught.value.__notes__ == [f"A crash report is in {path}"]
    assert pool.stats().current_bytes == 0


def test_a_workspace_that_is_full(folder):
    space = mc.workspace("full", mc.WorkspaceConfig(initial_size=1000, spill="fail"))
    with pytest.raises(MemoryError), space:
        np.zeros(10**5)
    (path,) = reports(folder)
    assert document(path)["error"]["type"] == "WorkspaceFullError"
    assert [each["name"] for each in document(path)["workspaces"]] == ["full"]
    mc.destroy_all_workspaces()


def test_what_is_given_back_or_handled_leaves_none(folder, pool):
    careful = memory.failure_callback(pool, lambda _: bool(kept) and not kept.clear())
    kept = [careful.allocate(900_000)]
    careful.allocate(900_000).free()
    numbers = mc.data.Dataset.range(1000).batch(10).prefetch(4)
    assert sum(1 for _ in numbers) == 100
    assert reports(folder) == []


def test_a_pool_that_waits_writes_none(folder):
    patient = memory.Pool(limit="1MiB", retry_seconds=0.01)
    refused(patient)
    assert reports(folder) == []


def test_tracked_events_are_in_it(folder, pool):
    watched = memory.tracking(pool)
    for size in range(1000, 31_000, 1000):
        watched.allocate(size, tag=f"of {size}").free()
    refused(watched)
    (path,) = reports(folder)
    events = document(path)["events"]
    assert events[-1]["action"] == "was refused"
    assert events[-2]["tag"] == "of 30000"
    assert len(events) == 20


def test_one_by_hand(tmp_path, pool):
    error = refused(pool)
    path = mc.crash_report(error, tmp_path)
    assert document(path)["error"]["limit_bytes"] == 2**20
    other = mc.crash_report(folder=tmp_path)
    assert "error" not in document(other)
    assert "test_one_by_hand" in text(other)
    assert mc.memory.crash_report is mc.crash_report
    for wrong in (3, "text", ResourceExhaustedError):
        with pytest.raises(TypeError, match="an exception or None"):
            mc.crash_report(wrong, tmp_path)
    with pytest.raises(TypeError):
        mc.crash_report(error, 3)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        mc.crash_report(error, file / "folder")


def test_a_section_that_fails_hides_no_other(folder, pool, monkeypatch):
    def section():
        raise KeyError("missing")

    def broken(error, owner):
        raise ValueError("not even its name")

    def own(error, owner):
        yield "own", "My own", section
        yield "nan", "Not JSON", lambda: ("text", float("nan"))
        yield "good", "Good", lambda: ("the text", {"a": 1})

    add_to_crash_reports(monkeypatch, broken, own)
    refused(pool)
    (path,) = reports(folder)
    data, words = document(path), text(path)
    assert data["failed_sections"] == ["internals", "own", "nan"]
    assert data["own"] == {"failed": "KeyError: 'missing'"}
    assert "This section failed. ValueError: not even its name" in words
    assert data["good"] == {"a": 1}
    assert "the text" in words
    assert data["versions"]["memcfg"] == mc.__version__


@pytest.mark.parametrize("action", ["always", "error"])
def test_a_folder_that_cannot_be_made_hides_no_error(tmp_path, pool, action):
    file = tmp_path / "file"
    file.touch()
    mc.config.set_crash_reports(file / "folder")
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter(action)
            error = refused(pool)
    finally:
        mc.config.reset()
    assert error.limit_bytes == 2**20
    assert not hasattr(error, "__notes__")
    assert [str(each.message)[:30] for each in heard] == (
        ["the crash report could not be "] if action == "always" else []
    )


FULL = """
import json, resource, sys, warnings
import memcfg as mc
pool = mc.memory.Pool(limit="1MiB")
mc.config.set_crash_reports(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    try:
        pool.allocate(2**21)
    except mc.errors.ResourceExhaustedError as error:
        print(error.crash_report)
print([str(each.message) for each in heard])
"""


def test_a_full_disk_hides_no_error_and_leaves_what_fits(tmp_path):
    done = program(FULL, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is incomplete: [Errno 27]") == 1
    (path,) = reports(tmp_path)
    assert "A request does not fit the memory limit." in text(path)
    assert len(text(path).encode()) == 1000


NO_MEMORY = """
import json, resource, sys
import memcfg as mc
mc.config.set_crash_reports(sys.argv[1])
pool = mc.memory.Pool(limit="1GiB", name="scratch")
pool.allocate(1000).free()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**24, size + 2**24))
kept = []
for nbytes in (2**20, 2**14, 2**8):
    try:
        while True:
            kept.append(bytearray(nbytes))
    except MemoryError:
        pass
try:
    pool.allocate(2**28)
except MemoryError as error:
    held, kept = kept, None
    del held
    print(error.crash_report)
"""


def test_a_process_without_memory_writes_one(tmp_path):
    done = program(NO_MEMORY, tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = reports(tmp_path)
    assert done.stdout.strip() == str(path)
    assert document(path)["failed_sections"] == []
    assert "scratch" in text(path)


def test_the_environment_asks_for_them(tmp_path):
    source = (
        "import os, memcfg as mc\n"
        "pool = mc.memory.Pool(limit='1MiB')\n"
        "print(mc.config.get_crash_reports(), flush=True)\n"
        "if not os.fork():\n"
        "    pool.allocate(2**21)\n"
        "os.wait()\n"
    )
    variables = {**os.environ, "MEMCFG_CRASH_REPORTS": "its reports"}
    done = program(source, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "its reports"
    (path,) = reports(tmp_path / "its reports")
    assert f"A crash report is in {path}" in done.stderr
    data = document(path)
    assert data["environment"] == {
        k: v
        for k, v in variables.items()
        if k.startswith(("MEMCFG_", "OMP_", "GOMP_", "MALLOC_", "CUDA_"))
    }
    assert str(data["process"]) in path.name


def test_the_setting(tmp_path):
    assert mc.config.set_crash_reports(tmp_path) is None
    assert mc.config.set_crash_reports("some") == str(tmp_path)
    assert mc.config.get_crash_reports() == os.path.abspath("some")
    for wrong in (3, 1.5, ["a"]):
        with pytest.raises(TypeError):
            mc.config.set_crash_reports(wrong)
    with pytest.raises(ValueError, match="folder is empty"):
        mc.config.set_crash_reports("")
    with pytest.raises(ValueError, match="max_reports is at least 1"):
        mc.config.set_crash_reports(tmp_path, max_reports=0)
    assert mc.config.get_crash_reports() == os.path.abspath("some")
    mc.config.reset()
    assert mc.config.get_crash_reports() is None
