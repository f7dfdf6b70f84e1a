"""Files that a process replaces as long as it runs, and that are known to be dead.

Whoever writes such a file holds a lock on it (flock), which the kernel releases when
the process ends, in whatever way. A file that can be locked was therefore left behind,
even if another process has got the number of its writer since.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from memcfg.files._private import open_private_file
from memcfg.files._temporary import create_temporary, is_at, remove_abandoned, try_lock

__all__ = ["HeldFile", "read_held_file"]

_OWNER_ONLY = 0o600
_TRIES = 10  # of reading a file that is replaced meanwhile


class HeldFile:
    """A file of this process, which only its user can read.

    It is not written to the disk at once: it is of no use after a crash of the machine.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._handle: int | None = None
        remove_abandoned(self.path)  # of processes that died while writing

    def replace(self, data: bytes) -> None:
        """Write the file as a whole; a reader gets what was there, or this."""
        handle, temporary = create_temporary(self.path.parent, _OWNER_ONLY)
        try:
            os.fchmod(handle, _OWNER_ONLY)  # whatever the umask
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            temporary.replace(self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            os.close(handle)
            raise
        self.release()
        self._handle = handle

    def remove(self) -> None:
        """Remove the file, unless another one has taken its name."""
        if self._handle is not None:
            with suppress(OSError):
                if is_at(self._handle, self.path):
                    self.path.unlink()
        self.release()

    def release(self) -> None:
        """Let go of the file, which is the parent's in the child of a fork."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def read_held_file(path: str | os.PathLike[str]) -> bytes | None:
    """Read a file of a running process; None, and it is removed, if it is abandoned.

    Raises FileNotFoundError if there is none, and PermissionError if others could have
    written it.
    """
    for _ in range(_TRIES):
        with open_private_file(path) as file:
            if try_lock(file.fileno()) is not True:
                return file.read()
            if is_at(file.fileno(), Path(path)):
                os.unlink(path)
                return None
    return None
