"""Live reports of memory, and `memcfg top`, which shows them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager

import pytest
from rich.cells import cell_len

from memcfg import config, memory
from memcfg.cli import main
from memcfg.errors import FormatError
from memcfg.files import HeldFile, read_held_file

CHILD = """
import sys
from memcfg import memory
pool = memory.Pool(limit="16MiB", name="scratch")  # the first report is written here
block = pool.allocate(3_000_000, tag="window")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of reports, which is made with the first one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path / "memcfg"
    config.set_live_report(False)


@contextmanager
def reporting():
    """A process that reports its memory, until its input is closed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"MEMCFG_LIVE_REPORT": "1"},
    )
    with child:
        child.stdout.readline()
        yield child
        child.stdin.close()


def threads():
    return [each.name for each in threading.enumerate() if "live report" in each.name]


def test_no_process_reports_by_default(folder, capsys):
    memory.Pool(limit="1MiB")
    assert config.get_live_report() is False
    assert threads() == []
    assert not folder.exists()
    assert main(["top"]) == 0
    assert "No process reports its memory" in capsys.readouterr().out


def test_a_report_has_the_numbers_of_pools_and_is_the_users_alone(folder):
    pool = memory.Pool(limit="1MiB", name="scratch")
    with pool.allocate(1000, tag="window"):
        assert config.set_live_report(True) is False
        stats = pool.stats()
    path = folder / f"{os.getpid()}.json"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = json.loads(path.read_text())
    (found,) = (each for each in report["pools"] if each["name"] == "scratch")
    assert found["owners"] == [{"name": "window", "nbytes": 1024}]
    for name in ("limit_bytes", "current_bytes", "peak_bytes", "reserved_bytes"):
        assert found[name] == getattr(stats, name)
    assert threads() == ["memcfg live report"]
    assert config.set_live_report(True) is True
    assert config.set_live_report(False) is True
    assert list(folder.iterdir()) == []


def test_a_process_is_watched_until_it_ends(folder, capsys):
    with reporting() as child:
        for _ in range(100):  # the second report has the block
            assert main(["top", str(child.pid)]) == 0
            out = capsys.readouterr().out
            if "window" in out:
                break
            time.sleep(0.1)
        lines = out.splitlines()
        assert lines[0].startswith(f"Process {child.pid}, ")
        pool, owner = lines[-2:]
        assert re.fullmatch(
            r"scratch \(pool\) +█{2} +2.86 MiB +16.00 MiB +2.86 MiB", pool
        )
        assert re.fullmatch(r"  window +█{12} +2.86 MiB", owner)
        assert main(["top"]) == 0
        assert re.search(rf"^{child.pid} .* 2.86 MiB", capsys.readouterr().out, re.M)
    assert list(folder.iterdir()) == []
    for pid in (child.pid, 2**70):
        assert main(["top", str(pid)]) == 2
        assert "there is no such process" in capsys.readouterr().err
    assert main(["top", str(os.getppid())]) == 2
    assert "does not report its memory" in capsys.readouterr().err


def test_the_report_of_a_killed_process_is_told_and_removed(folder, capsys):
    with reporting() as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert [path.stem for path in folder.iterdir()] == [str(child.pid)]
        assert main(["top"]) == 0
        out = capsys.readouterr().out
        assert f"Removed reports of processes that were killed: {child.pid}." in out
        assert list(folder.iterdir()) == []


def test_a_terminal_is_drawn_again_until_the_process_ends(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "5")
    pool, blocks = memory.Pool(limit="1MiB", name="scratch"), []

    def wait(_):
        config.set_live_report(False)
        if not blocks:
            blocks.append(pool.allocate(1000, tag="window"))
            config.set_live_report(True)

    monkeypatch.setattr("time.sleep", wait)
    config.set_live_report(True)
    assert main(["top", str(os.getpid())]) == 0
    out = capsys.readouterr().out
    screens, end = out.partition("\x1b[?1049h")[2].split("\x1b[?1049l")
    assert screens.count(f"Process {os.getpid()}, ") == 2
    assert re.search(r"\d+ more lines", screens)
    assert re.search(r"  window .* 1.00 KiB", end)
    assert end.endswith(f"Process {os.getpid()} has ended.\n")


@pytest.mark.parametrize("columns", [80, 50, 30, 24])
def test_the_table_fits_a_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    pool = memory.Pool(limit="1MiB", name="scratch")
    with pool.allocate(1000, tag="window"):
        config.set_live_report(True)
        for arguments in (["top"], ["top", str(os.getpid())]):
            assert main(arguments) == 0
            out = capsys.readouterr().out
            assert all(cell_len(line) <= columns for line in out.splitlines())
    assert "1.00 KiB" in out
    assert ("1.00 MiB" in out) == (columns >= 50)


def test_a_child_of_a_fork_does_not_report(folder):
    config.set_live_report(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(config.get_live_report())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert config.get_live_report()
    assert read_held_file(folder / f"{os.getpid()}.json") is not None


def test_a_folder_that_others_can_write_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="writable by others"):
        config.set_live_report(True)
    assert not config.get_live_report()
    assert list(folder.iterdir()) == []


def test_bad_settings_are_refused(monkeypatch):
    with pytest.raises(TypeError):
        config.set_live_report(1)
    monkeypatch.setenv("MEMCFG_LIVE_REPORT", "yes")
    config.reset()
    with pytest.raises(FormatError, match="MEMCFG_LIVE_REPORT"):
        memory.Pool(limit="1MiB")
    monkeypatch.delenv("MEMCFG_LIVE_REPORT")
    assert memory.Pool(limit="1MiB").limit == 2**20


def test_a_damaged_report_is_one_line(folder, capsys):
    config.set_live_report(True)
    file = HeldFile(folder / "1.json")
    file.replace(b'{"format": "another"}')
    assert main(["top", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    file.remove()


def test_a_file_that_is_replaced_is_read_whole(tmp_path):
    file, stop = HeldFile(tmp_path / "held"), threading.Event()
    pieces = [bytes([number]) * 5000 for number in range(9)]
    file.replace(pieces[0])

    def write():
        while not stop.is_set():
            for piece in pieces:
                file.replace(piece)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = {read_held_file(file.path) for _ in range(200)}
    finally:
        stop.set()
        writer.join()
    assert found <= set(pieces)
    file.remove()
    assert list(tmp_path.iterdir()) == []
