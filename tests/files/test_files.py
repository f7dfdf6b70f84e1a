"""Files are written whole or not at all, and errors name the path that was given."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import threading
from contextlib import contextmanager

import pytest

from memcfg import memory
from memcfg.cli import main
from memcfg.data import DataSet, Dataset
from memcfg.files import open_file, read_file, write_atomically
from memcfg.nn import Dense, Input, Sequential

NEW = b"new content " * 1000


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def permissions(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def limited_file_size():
    """Let no file of this process become larger than 4096 bytes: a full disk.

    Not even the one that pytest may be writing its dots to.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failure(path) -> OSError:
    with pytest.raises(OSError, match=r".") as caught:
        write_atomically(path, NEW)
    assert caught.value.filename == os.fspath(path)
    assert ".memcfg-" not in str(caught.value)
    return caught.value


def test_a_new_file_gets_what_the_mask_leaves(tmp_path):
    path = tmp_path / "new"
    before = os.umask(0o027)
    try:
        write_atomically(path, NEW)
    finally:
        os.umask(before)
    assert path.read_bytes() == NEW
    assert permissions(path) == 0o640
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o755])
def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(mode)
    other = tmp_path / "other name"
    os.link(path, other)
    write_atomically(str(path), NEW)
    assert path.read_bytes() == NEW
    assert permissions(path) == mode
    assert other.read_bytes() == b"old"  # replaced, not written into


def test_a_name_as_long_as_a_name_may_be_is_written(tmp_path):
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    write_atomically(path, NEW)
    assert path.read_bytes() == NEW


def test_a_relative_path_is_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomically("here", NEW)
    assert (tmp_path / "here").read_bytes() == NEW


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, there):
    target, folder = tmp_path / "target", tmp_path / "folder"
    folder.mkdir()
    if there:
        target.write_bytes(b"old")
    link, second = folder / "link", folder / "second"
    link.symlink_to("../target")
    second.symlink_to("link")
    write_atomically(second, NEW)
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.read_bytes() == NEW
    assert not target.is_symlink()
    assert names(tmp_path) == ["folder", "target"]
    assert names(folder) == ["link", "second"]


def test_a_link_to_itself_is_refused(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("link")
    assert failure(link).errno == errno.ELOOP
    assert link.is_symlink()


def test_a_missing_folder_is_named_by_the_path_that_was_given(tmp_path):
    error = failure(tmp_path / "no" / "file")
    assert isinstance(error, FileNotFoundError)
    assert names(tmp_path) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    assert isinstance(failure(tmp_path / "file" / "below"), NotADirectoryError)


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    assert isinstance(failure(tmp_path / "folder"), IsADirectoryError)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == []


def test_a_folder_that_cannot_be_written_is_named_by_the_path(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.open", refuse)
    assert isinstance(failure(tmp_path / "file"), PermissionError)
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert isinstance(failure(tmp_path / "file"), PermissionError)
    finally:
        tmp_path.chmod(0o700)
    assert names(tmp_path) == []


def test_a_write_protected_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "protected"
    path.write_bytes(b"old")
    path.chmod(0o444)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everything
    assert isinstance(failure(path), PermissionError)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["protected"]


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_what_was_there(tmp_path, there):
    path = tmp_path / "file"
    if there:
        path.write_bytes(b"old")
    with limited_file_size():
        assert failure(path).errno == errno.EFBIG
    assert names(tmp_path) == (["file"] if there else [])
    if there:
        assert path.read_bytes() == b"old"


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "os.open"])
def test_whatever_fails_leaves_what_was_there(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error", "a temporary name")

    monkeypatch.setattr(step, fail)
    assert failure(path).errno == errno.EIO
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_an_interruption_leaves_what_was_there(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", NEW)
    assert names(tmp_path) == []


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, NEW)
    reader.join()
    assert received == [NEW]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_device_that_is_full_is_named():
    assert failure("/dev/full").errno == errno.ENOSPC


def test_a_file_that_is_there_is_refused_where_it_must_not_be_replaced(tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        write_atomically(path, NEW, overwrite=False)
    assert caught.value.filename == os.fspath(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["old"]
    write_atomically(path, NEW)
    write_atomically(tmp_path / "new", NEW, overwrite=False)
    assert (tmp_path / "new").read_bytes() == path.read_bytes() == NEW
    assert names(tmp_path) == ["new", "old"]


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_a_file_that_comes_up_meanwhile_is_refused_too(tmp_path, monkeypatch, links):
    """Whoever asks whether there is a file, and writes then, writes over it."""
    path = tmp_path / "new"
    link, fsync = os.link, os.fsync

    def of_another_process(handle):
        path.write_bytes(b"old")
        fsync(handle)

    def no_links(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link if links else no_links)
    write_atomically(path, NEW, overwrite=False)
    assert path.read_bytes() == NEW
    path.unlink()
    monkeypatch.setattr(os, "fsync", of_another_process)
    with pytest.raises(FileExistsError) as caught:
        write_atomically(path, NEW, overwrite=False)
    assert caught.value.filename == os.fspath(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["new"]


# Reading


def fit_to_load(path):
    Sequential([Input((2,)), Dense(1)]).load_weights(path)


def command(*words):
    """Run a command as the shell does, and give its error back."""

    def run(path):
        asked = [str(path) if word is ... else word for word in words]
        assert main(asked) == 2
        raise OSError  # said on the error stream

    return run


READERS = {
    "open_file": open_file,
    "read_file": lambda path: read_file(path, 10**6),
    "weights": fit_to_load,
    "trace": memory.Trace.load,
    "log": memory.Trace.from_csv,
    "snapshot": memory.Trace.from_snapshot,
    "replay": lambda path: memory.replay(path, memory.Pool(limit="1MiB")),
    "data set": DataSet.load,
    "cache": lambda path: list(Dataset.range(3).cache(path)),
    "plan": command("plan", "--graph", ...),
    "judge": command("judge", ..., ...),
    "place": command("place", ..., "--capacity", "1MiB"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "link"])
def test_what_is_no_file_is_refused_at_once(tmp_path, reader, kind):
    """A pipe that nobody writes would be waited for, a device read without end."""
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))
    elif kind == "device":
        path = "/dev/zero"
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - of several numbers
        READERS[reader](path)
    if caught.value.errno is not None:
        assert caught.value.filename == os.fspath(path)


def test_a_file_is_read_whole_or_refused_as_too_large(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="100 bytes, of which at most 99") as caught:
        read_file(str(path), 99)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "nothing")
