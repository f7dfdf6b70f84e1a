"""Folders and files that nobody but their user can change, as ssh asks of its own.

A file or folder that neither the user nor root owns, or that a group or others can
write, is refused with a PermissionError that says so. Nobody else may be able to
replace a folder, so its parents are checked, too, up to the user's home or the root. A
sticky parent may be writable by others, who can then rename only their own files.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from memcfg.files._opening import open_file

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["make_private_folder", "open_private_file", "require_private_folder"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_private_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read it, if it is private; its folder is not looked at."""
    file = open_file(path)
    try:
        _require_private(os.fstat(file.fileno()), os.fspath(path))
    except BaseException:
        file.close()
        raise
    return file


def make_private_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, and those around it that are missing, 0700 whatever the umask."""
    path = os.path.abspath(folder)
    if not os.path.isdir(path):
        make_private_folder(os.path.dirname(path))
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)


def require_private_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in which others could put files, or in whose place a folder."""
    path = os.path.realpath(folder)
    home = os.path.realpath(os.path.expanduser("~"))
    _require_private(os.stat(path), path)
    while path not in (home, parent := os.path.dirname(path)):
        path = parent
        _require_private(os.stat(path), path, shared=True)


def _require_private(state: os.stat_result, path: str, *, shared: bool = False) -> None:
    """`shared`: whether others may write to a folder in which names stay their own."""
    if state.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"it is owned by user {state.st_uid}", path)
    sticky = shared and state.st_mode & stat.S_ISVTX
    if state.st_mode & _OTHERS_WRITE and not sticky:
        raise PermissionError(
            errno.EPERM, "it is writable by others: run `chmod go-w` on it", path
        )
