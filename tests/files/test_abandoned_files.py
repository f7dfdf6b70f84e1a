"""What a process that died has left under a temporary name, and what a living one has.

A file is removed if nobody holds its lock, and its name says that this kernel knows of
all who could; else a day after it was last written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from internals import hide_kernel, set_many_entries

import memcfg as mc
from memcfg.files import remove_abandoned, write_atomically

nn = mc.nn
DAY = 86_400
SAVED = b"saved"


def left_in(folder) -> list[str]:
    return sorted(path.name for path in Path(folder).glob(".memcfg-*"))


def forked(act) -> int:
    """Run it in a child, and return the child's number."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(7)
    return child


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_in_a_save(folder, name="model"):
    """Leave what a process leaves that is killed while it writes."""

    def pieces():
        yield b"half of it"
        os.kill(os.getpid(), signal.SIGKILL)

    child = forked(lambda: write_atomically(Path(folder) / name, pieces()))
    assert end_of(child) == -signal.SIGKILL
    (left,) = left_in(folder)
    return Path(folder) / left


def small_model():
    model = nn.Sequential([nn.Input((2,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    return model


def trained(folder):
    x = np.ones((2, 2), np.float32)
    backup = nn.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    small_model().fit(x, x[:, :1], epochs=1, verbose=0, callbacks=backup)


@pytest.fixture
def saved(tmp_path):
    """A folder with a model, its weights and a backup of its training."""
    model = small_model()
    model.save(tmp_path / "m.memcfg")
    model.save_weights(tmp_path / "w.safetensors")
    trained(tmp_path)
    return tmp_path


ACTS = {
    "save": lambda folder: small_model().save(folder / "other.memcfg"),
    "save_weights": lambda folder: small_model().save_weights(folder / "o.safetensors"),
    "load_model": lambda folder: nn.models.load_model(folder / "m.memcfg"),
    "load_weights": lambda folder: small_model().load_weights(folder / "w.safetensors"),
    "restore": trained,
    "data set": lambda folder: mc.data.DataSet(np.ones(3), None).save(folder / "d"),
}


@pytest.mark.parametrize("act", ACTS)
def test_the_next_save_or_load_removes_what_the_dead_have_left(saved, act):
    die_in_a_save(saved)
    ACTS[act](saved)
    assert left_in(saved) == []


def test_a_load_through_a_link_removes_what_is_beside_the_file(saved, tmp_path_factory):
    link = tmp_path_factory.mktemp("other") / "link.memcfg"
    link.symlink_to(saved / "m.memcfg")
    die_in_a_save(saved)
    nn.models.load_model(link)
    assert left_in(saved) == []


def test_many_deaths_leave_nothing(tmp_path):
    for _ in range(5):
        die_in_a_save(tmp_path)  # each removes what the one before it has left
    write_atomically(tmp_path / "model", SAVED)
    assert os.listdir(tmp_path) == ["model"]


def test_what_a_thread_writes_stays(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def pieces():
        yield b"first "
        begun.set()
        assert go_on.wait(10)
        yield b"second"

    writer = threading.Thread(
        target=write_atomically, args=(tmp_path / "slow", pieces())
    )
    writer.start()
    assert begun.wait(10)
    write_atomically(tmp_path / "quick", SAVED)
    remove_abandoned(tmp_path / "quick")
    assert len(left_in(tmp_path)) == 1
    go_on.set()
    writer.join()
    assert (tmp_path / "slow").read_bytes() == b"first second"
    assert sorted(os.listdir(tmp_path)) == ["quick", "slow"]


def test_what_another_process_writes_stays_also_while_it_is_stopped(tmp_path):
    begun, go_on = os.pipe(), os.pipe()

    def act():
        def pieces():
            yield b"first "
            os.write(begun[1], b"x")
            os.read(go_on[0], 1)
            yield b"second"

        write_atomically(tmp_path / "slow", pieces())
        os._exit(0)

    child = forked(act)
    os.read(begun[0], 1)
    os.kill(child, signal.SIGSTOP)
    (left,) = left_in(tmp_path)
    os.utime(tmp_path / left, (0, 0))  # a process may be stopped for long
    write_atomically(tmp_path / "quick", SAVED)
    assert left_in(tmp_path) == [left]
    os.kill(child, signal.SIGCONT)
    os.write(go_on[1], b"x")
    assert end_of(child) == 0
    assert (tmp_path / "slow").read_bytes() == b"first second"
    assert left_in(tmp_path) == []
    for end in (*begun, *go_on):
        os.close(end)


def test_a_fork_amid_a_save_neither_frees_the_file_nor_takes_it_along(tmp_path):
    """The child has the open file too; its end leaves the lock to its parent."""
    go_on = os.pipe()
    children = []

    def pieces():
        yield b"first "
        children.append(forked(lambda: os._exit(0)))
        assert end_of(children[0]) == 0
        children.append(forked(lambda: os.read(go_on[0], 1)))
        remove_abandoned(tmp_path / "any")
        assert len(left_in(tmp_path)) == 1
        yield b"second"

    write_atomically(tmp_path / "file", pieces())
    write_atomically(tmp_path / "file", SAVED)  # the second child lives still
    os.write(go_on[1], b"x")
    assert end_of(children[1]) == 7
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == SAVED
    for end in go_on:
        os.close(end)


def test_what_a_child_of_the_dead_has_open_stays_until_it_ends(tmp_path):
    go_on, begun = os.pipe(), os.pipe()

    def pieces():
        yield b"half of it"
        forked(lambda: (os.write(begun[1], b"x"), os.read(go_on[0], 1)))
        os.kill(os.getpid(), signal.SIGKILL)

    end_of(forked(lambda: write_atomically(tmp_path / "model", pieces())))
    os.read(begun[0], 1)
    for end in (begun[0], begun[1], go_on[0]):
        os.close(end)
    write_atomically(tmp_path / "model", SAVED)
    (left,) = left_in(tmp_path)
    os.write(go_on[1], b"x")
    os.close(go_on[1])
    with open(tmp_path / left, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for the grandchild's end
    write_atomically(tmp_path / "model", SAVED)
    assert left_in(tmp_path) == []


def aged(path, days):
    seconds = os.stat(path).st_mtime - days * DAY
    os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("name", [f".memcfg-{'a' * 16}-{'b' * 16}", ".memcfg-4711-0"])
def test_what_another_kernel_wrote_stays_for_a_day(tmp_path, name):
    """Of a folder on the network: its locks may not reach here."""
    other = tmp_path / name
    other.write_bytes(b"half of it")
    for days in (0, 0.9):
        aged(other, days)
        write_atomically(tmp_path / "file", SAVED)
        remove_abandoned(tmp_path / "file")
        assert other.exists()
    aged(other, 1.1)
    remove_abandoned(tmp_path / "file")  # what time is it there?
    assert other.exists()
    with open(other, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(tmp_path / "file", SAVED)
        assert other.exists()
    write_atomically(tmp_path / "file", SAVED)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_it_stays_for_a_day_too(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = die_in_a_save(tmp_path)
    write_atomically(tmp_path / "file", SAVED)
    assert left.exists()
    aged(left, 2)
    write_atomically(tmp_path / "file", SAVED)
    assert os.listdir(tmp_path) == ["file"]


def test_where_the_kernel_tells_no_name_it_stays_for_a_day_too(tmp_path, monkeypatch):
    hide_kernel(monkeypatch)
    left = die_in_a_save(tmp_path)
    write_atomically(tmp_path / "file", SAVED)
    assert left.exists()
    aged(left, 2)
    write_atomically(tmp_path / "file", SAVED)
    assert not left.exists()


def test_what_only_looks_like_one_stays(tmp_path):
    place = die_in_a_save(tmp_path).name.split("-")[1]
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    names = [f".memcfg-{place}-{number:016x}" for number in range(3)]
    (tmp_path / names[0]).symlink_to(target)
    (tmp_path / names[1]).mkdir()
    os.mkfifo(tmp_path / names[2])
    others = [".memcfg-", ".memcfg-xyz", ".memcfg-12-34-56", "memcfg-12-34", ".memcfgs"]
    for other in others:
        (tmp_path / other).write_bytes(b"")
        aged(tmp_path / other, 9)
    write_atomically(tmp_path / "file", SAVED)
    assert set(os.listdir(tmp_path)) == {"file", "target", *names, *others}
    assert target.read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a second user")
def test_what_another_user_may_not_open_stays():
    with tempfile.TemporaryDirectory() as name:  # pytest's are the user's alone
        folder = Path(name)
        folder.chmod(0o777)
        left = die_in_a_save(folder)
        left.chmod(0o600)

        def act():
            os.seteuid(65534)
            write_atomically(folder / "theirs", SAVED)
            os._exit(0)

        assert end_of(forked(act)) == 0
        assert left.exists()
        write_atomically(folder / "file", SAVED)
        assert not left.exists()


def test_a_name_that_was_removed_before_it_was_locked_is_drawn_anew(
    tmp_path, monkeypatch
):
    """Who looks between the creation and the lock finds a file that nobody holds."""
    lock, taken = fcntl.flock, []

    def later(file, how):
        if not taken:
            taken.append(None)
            remove_abandoned(tmp_path / "file")
            assert left_in(tmp_path) == []
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", later)
    write_atomically(tmp_path / "file", SAVED)
    assert taken
    assert (tmp_path / "file").read_bytes() == SAVED
    assert os.listdir(tmp_path) == ["file"]


def test_a_large_folder_is_looked_at_now_and_then(tmp_path, monkeypatch):
    set_many_entries(monkeypatch, 5)
    for number in range(18):
        (tmp_path / str(number)).write_bytes(b"")
    scandir, looks = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(0) or scandir(path))
    for _ in range(9):
        remove_abandoned(tmp_path / "0")
    assert len(looks) == 3  # a look at 18 entries for 3 calls, and the one after them
