"""Files that are written whole or not at all, and opened only if they are files."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BufferedReader

__all__ = ["open_file", "read_file", "write_atomically"]

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read it, without ever waiting for a writer."""
    name = os.fspath(path)
    # without O_NONBLOCK the open itself would wait for the other end of a pipe
    handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode):
            kind = next(word for is_kind, word in _KINDS if is_kind(mode))
            raise OSError(errno.EINVAL, f"{kind}, not a regular file", name)
    except BaseException:
        os.close(handle)
        raise
    return open(handle, "rb")


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a whole file of at most so many bytes, as long as it was when opened."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            what = f"{size} bytes, of which at most {max_bytes} are read"
            raise OSError(errno.EFBIG, what, os.fspath(path))
        return file.read(size)


def write_atomically(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes | memoryview],
    *,
    overwrite: bool = True,
) -> None:
    """Write a file: whole, or, when anything fails, not at all.

    One that is there keeps its permissions; a symbolic link stays, and its target is
    replaced; what is no file on a disk, such as a pipe, is written into. An OSError has
    `path` as its `filename` and leaves nothing behind. The bytes go to a temporary file
    in the same folder, and to the disk, before it takes the name over, which is atomic.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        _write(Path(path), pieces, overwrite=overwrite)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _write(
    path: Path, pieces: Iterable[bytes | memoryview], *, overwrite: bool
) -> None:
    mode = _mode(path)
    if mode is None:
        _replace(path, pieces, None, overwrite=overwrite)
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
        _replace(path, pieces, stat.S_IMODE(mode), overwrite=True)


def _mode(path: Path) -> int | None:
    """Return what kind of file is there, and its permissions; None: there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    permissions: int | None,
    *,
    overwrite: bool,
) -> None:
    """Put a new file in place; without permissions it gets those of any new file."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".memcfg-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666 if permissions is None else 0o600)
    try:
        with open(handle, "wb") as stream:
            _write_to(stream, pieces)
            stream.flush()
            os.fsync(handle)
        if permissions is not None:
            temporary.chmod(permissions)
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
