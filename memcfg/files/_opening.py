"""Opening regular files, and nothing else, to read them."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["open_file", "read_file"]

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
