"""Files on disks that are full, write-protected or somebody else's.

Disks that are really full or read-only are small ones in memory (tmpfs), mounted in a
namespace of the test's own; where the system permits none, those tests are skipped. A
limit on the size of files, which any user may set, and the injected failures of
tests/native/test_file_faults.cpp run everywhere.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import small_disks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")

START = """
import errno, os, resource, subprocess
import numpy as np
from memcfg import memory

def refused(call, number, words=""):
    try:
        call()
    except OSError as error:
        assert error.errno == number, error
        assert words in str(error), error
        return str(error)
    raise AssertionError("it was not refused")

def become_nobody():
    memory.Pool()  # what is imported late is out of nobody's reach, perhaps
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

def content():
    return {name: open(name, "rb").read() for name in sorted(os.listdir())}
"""


def run_on_a_disk(folder: Path, nbytes: int, source: str) -> None:
    """Run a program on a disk of its own."""
    small_disks.run_on_a_disk(folder, nbytes, START + textwrap.dedent(source))


def run(source: str, folder: Path) -> None:
    """Run a program in a folder."""
    small_disks.run_in_a_folder(folder, START + textwrap.dedent(source))


@pytest.fixture
def open_folder():
    """A folder that everybody may use, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_a_full_disk_is_told_before_the_first_write(tmp_path):
    run_on_a_disk(
        tmp_path,
        2**20,
        """
        open("old", "wb").write(b"old" * 1000)
        with open("sparse", "wb") as stream:
            stream.truncate(2**22)
        before = content()
        for call in (
            lambda: memory.mmap_file("new", 2**21),
            lambda: memory.mmap_file("new", 2**21, delete=True),
            lambda: memory.mmap_file("old", 2**21),
            lambda: memory.mmap_file("old", 2**21, overwrite=True),
            lambda: memory.mmap_file("sparse"),
            lambda: memory.mmap_file("sparse", overwrite=True),
            lambda: memory.mapped_array("new", 2**18),
        ):
            words = refused(call, errno.ENOSPC, "more are needed, ")
            assert " bytes more are needed" in words and " are free" in words, words
            assert content() == before
        assert os.stat("sparse").st_blocks == 0
        free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
        needed = f"{2**21} bytes more are needed, {free} are free"
        refused(lambda: memory.mmap_file("new", 2**21), errno.ENOSPC, needed)
        """,
    )


def test_a_disk_can_be_filled_to_the_last_page_and_every_byte_written(tmp_path):
    run_on_a_disk(
        tmp_path,
        2**20,
        """
        free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
        refused(lambda: memory.mmap_file("new", free + 1), errno.ENOSPC)
        array = memory.mapped_array("new", free, "u1")
        refused(lambda: memory.mmap_file("more", 1), errno.ENOSPC)
        array[:] = 7
        array.flush()
        assert os.listdir() == ["new"]
        assert open("new", "rb").read() == bytes([7]) * free
        """,
    )


def test_a_read_only_disk(tmp_path):
    run_on_a_disk(
        tmp_path,
        2**20,
        """
        open("old", "wb").write(b"old")
        subprocess.run(["mount", "-o", "remount,ro", os.getcwd()], check=True)
        before = content()
        for path in ("new", "old"):
            for more in ({}, {"overwrite": True}):
                refused(lambda: memory.mmap_file(path, 10, **more), errno.EROFS)
        refused(lambda: memory.mapped_array("old", dtype="u1"), errno.EROFS)
        assert content() == before
        """,
    )


def test_a_limit_on_the_size_of_files(tmp_path):
    run(
        """
        open("old", "wb").write(b"old" * 1000)
        before = content()
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
        for call in (
            lambda: memory.mmap_file("new", 2**21),
            lambda: memory.mmap_file("old", 2**21),
            lambda: memory.mmap_file("old", 2**21, overwrite=True),
            lambda: memory.mapped_array("new", 2**18),
        ):
            refused(call, errno.EFBIG)
            assert content() == before
        assert os.stat("old").st_blocks * 512 <= 4096
        with memory.mmap_file("new", 10**6) as file:
            assert os.stat("new").st_blocks * 512 >= 10**6
        """,
        tmp_path,
    )


def test_write_protection(open_folder):
    closed = open_folder / "closed"
    closed.mkdir()
    for folder, mode in ((open_folder, 0o444), (closed, 0o666)):
        (folder / "old").write_bytes(b"old")
        (folder / "old").chmod(mode)
    closed.chmod(0o555)
    run(
        """
        become_nobody()
        refused(lambda: memory.mmap_file("old", 10), errno.EACCES)
        refused(lambda: memory.mmap_file("old", 10, overwrite=True), errno.EACCES)
        words = "a new file in " + os.path.abspath("closed")
        refused(lambda: memory.mmap_file("closed/new", 10), errno.EACCES, words)
        call = lambda: memory.mmap_file("closed/old", 10, overwrite=True)
        refused(call, errno.EACCES, words)
        with memory.mmap_file("closed/old", 10):
            pass
        """,
        open_folder,
    )
    assert (open_folder / "old").read_bytes() == b"old"
    assert (closed / "old").read_bytes() == b"old" + bytes(7)
    assert {each.name for each in closed.iterdir()} == {"old"}
    closed.chmod(0o755)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)
def test_overwriting_keeps_the_owner_or_refuses(open_folder):
    path = open_folder / "old"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    run("memory.mmap_file('old', 10, overwrite=True).close()", open_folder)
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (
        1234,
        4321,
        0o640,
    )
    assert path.read_bytes() == bytes(10)
    path.chmod(0o666)
    run(
        """
        become_nobody()
        call = lambda: memory.mmap_file("old", 20, overwrite=True)
        refused(call, errno.EPERM, "would not have the owner")
        with memory.mmap_file("old", 10) as file:
            assert os.listdir() == ["old"]
        """,
        open_folder,
    )
    assert (path.stat().st_uid, path.read_bytes()) == (1234, bytes(10))


def test_what_passes_but_cannot_be_removed_stays_open(open_folder):
    run(
        """
        become_nobody()
        os.mkdir("inner")
        file = memory.mmap_file("inner/file", 10, delete=True)
        os.chmod("inner", 0o555)
        for _ in range(2):
            refused(file.close, errno.EACCES, "inner/file")
        assert not file.closed
        file.allocate(10).free()
        os.chmod("inner", 0o755)
        file.close()
        os.rmdir("inner")
        """,
        open_folder,
    )
