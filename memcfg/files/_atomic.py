"""Writing files whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from memcfg.files._temporary import create_temporary, remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_atomically"]


def write_atomically(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes | memoryview],
    *,
    overwrite: bool = True,
    permissions: int | None = None,
) -> None:
    """Write a file as a whole, or not at all if anything fails.

    It gets `permissions`, whatever the umask; None: those of the file that it replaces,
    or of any new one. A symbolic link stays, and its target is replaced. A path that is
    not a file on a disk, such as a pipe, is written to directly. An OSError has `path`
    as its `filename` and leaves nothing behind. The bytes go to a temporary file in the
    same folder, and to the disk, before it is renamed, which is atomic. Temporary files
    of processes that died while writing are removed.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        _write(Path(path), pieces, overwrite, permissions)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _write(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    overwrite: bool,
    permissions: int | None,
) -> None:
    mode = _mode(path)
    if mode is None:
        _replace(path, pieces, overwrite, permissions)
    elif stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    elif not stat.S_ISREG(mode):
        with path.open("wb") as stream:
            _write_to(stream, pieces)
    elif not overwrite:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    elif not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    else:
        known = stat.S_IMODE(mode) if permissions is None else permissions
        _replace(path, pieces, True, known)


def _mode(path: Path) -> int | None:
    """Return what kind of file is there, and its permissions; None: there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    overwrite: bool,
    permissions: int | None,
) -> None:
    """Put a new file in place; without permissions it gets those of any new file."""
    target = Path(os.path.realpath(path))
    first = 0o666 if permissions is None else 0o600
    handle, temporary = create_temporary(target.parent, first)
    with open(handle, "wb") as stream:  # and locked until it has its name
        try:
            remove_abandoned(target, os.fstat(handle).st_mtime_ns)
            _write_to(stream, pieces)
            stream.flush()
            os.fsync(handle)
            if permissions is not None:
                os.fchmod(handle, permissions)
            if overwrite:
                temporary.replace(target)
            else:
                _claim_name(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def _write_to(stream: IO[bytes], pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        stream.write(piece)
        del piece  # before the next one is made


def _claim_name(temporary: Path, target: Path) -> None:
    """Give a file a name that nobody else uses meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: the name is claimed first
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            temporary.replace(target)
        except BaseException:
            target.unlink()
            raise
    else:
        temporary.unlink()
