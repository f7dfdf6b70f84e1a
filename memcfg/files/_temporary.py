"""Temporary names of files that are being written, and those that were left behind.

A process that writes a file under such a name holds a lock on it (flock), which the
kernel releases when the last process that has the file open ends, in whatever way. A
file that can be locked is therefore abandoned, within the reach of locks: one kernel,
and one mount of a file system, which the name identifies. A file that was written
elsewhere, or without locks, counts as abandoned a day after its last write.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

__all__ = ["create_temporary", "is_at", "remove_abandoned", "try_lock"]

# A place and a number; of mapped files that are replaced, a process and a number.
_NAME = re.compile(r"\.memcfg-([0-9a-f]+)(-[0-9a-f]+)?")
_DAY = 86_400 * 10**9  # nanoseconds
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_EXAMINE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

# Entries of a folder that one call may look at, on average: some 0.5 ms. A call in a
# folder of more is put off until so many calls have come that together they may.
_ENTRIES = 1000
_calls_left: dict[str, int] = {}  # by folder
_FOLDERS = 1000  # that are remembered


def create_temporary(folder: Path, permissions: int) -> tuple[int, Path]:
    """Create a file under a name of its own, locked; return its descriptor and path.

    The lock lasts until the descriptor is closed: the file gets its name before that.
    """
    place = _place_of(folder) or "0"
    while True:
        path = folder / f".memcfg-{place}-{secrets.token_hex(8)}"
        file = os.open(path, _CREATE, permissions)
        try:
            # Before it was locked, `remove_abandoned` may have found it.
            if try_lock(file) is not False and is_at(file, path):
                return file, path
            path.unlink(missing_ok=True)
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def remove_abandoned(
    path: str | os.PathLike[str], now_nanoseconds: int | None = None
) -> None:
    """Remove the temporary files of a file that no running process writes.

    What cannot be looked at or removed stays, without an error. `now_nanoseconds` is
    the time by the clock of the file system, such as that of a file's last write just
    now; None: not known, and nothing is removed because of its age.
    """
    folder = os.path.dirname(os.path.realpath(path))
    left = _calls_left.get(folder, 0)
    if left:
        _calls_left[folder] = left - 1
        return
    count = 0
    with suppress(OSError), os.scandir(folder) as entries:
        place = _place_of(folder)
        for entry in entries:
            count += 1
            if match := _NAME.fullmatch(entry.name):
                reached = place is not None and match[1] == place
                with suppress(OSError):
                    _remove(entry.path, now_nanoseconds, reached=reached)
    if len(_calls_left) >= _FOLDERS:
        _calls_left.clear()
    _calls_left[folder] = count // _ENTRIES


def _remove(path: str, now: int | None, *, reached: bool) -> None:
    """Remove a file if it is abandoned; `reached`: whether its writer's lock is."""
    file = os.open(path, _EXAMINE)
    try:
        state = os.fstat(file)
        locked = stat.S_ISREG(state.st_mode) and try_lock(file)
        if locked is False:
            return
        old = now is not None and now - state.st_mtime_ns > _DAY
        if ((locked and reached) or old) and is_at(file, path):
            os.unlink(path)
    finally:
        os.close(file)


def try_lock(file: int) -> bool | None:
    """Lock a file; False: somebody else has; None: there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_at(file: int, path: str | Path) -> bool:
    """Return whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _place_of(folder: str | Path) -> str | None:
    """Name the running kernel and the mount of a folder; None if unknown.

    A file system that keeps locks to itself, as some over the network do, has one
    device number for each mount.
    """
    kernel = _kernel()
    if kernel is None:
        return None
    text = f"{kernel} {os.stat(folder).st_dev}"
    return sha256(text.encode()).hexdigest()[:16]


def _kernel() -> str | None:
    """Return what the kernel drew when it was started; None where it does not tell."""
    try:
        return Path(_BOOT_ID).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
