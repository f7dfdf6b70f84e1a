"""What was found out at some cost, kept on the disk: files that are whole and checked.

By default they are in folders of ``memcfg`` in the user's folder of caches, as the XDG
specification has it; a variable of the environment names another one, or is ``none``.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg._caller import outside
from memcfg.files import (
    make_private_folder,
    open_private_file,
    require_private_folder,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

_NONE = "none"
_told: set[str] = set()  # warnings, in this process


@dataclass(frozen=True)
class CacheKind:
    """What a folder keeps.

    Parameters
    ----------
    name : str
        The folder's, and the end of its files' names.
    variable : str
        Of the environment, which names another folder.
    limit : int
        Bytes of all files in a folder.
    loss : str
        What a warning says when nothing can be kept, with a place for the reason.
    """

    name: str
    variable: str
    limit: int
    loss: str

    @property
    def magic(self) -> bytes:
        """A file's beginning, before the digest and the data."""
        return f"memcfg {self.name} 1\n".encode()


class FileCache:
    """Data by the digests of what they were made from, in a folder.

    A file has another name until it is whole; one that is damaged is none. The oldest
    make way where they are more than the limit. What cannot be read or kept is made
    again, and a folder that cannot be written to is told of once a process; so is a
    folder or file that others could have written, which is neither read nor written.

    Parameters
    ----------
    folder : Path
        Where the files lie; made when the first is written.
    kind : CacheKind
        What they are.
    """

    def __init__(self, folder: Path, kind: CacheKind) -> None:
        self.folder = folder
        self.kind = kind

    def read(self, key: str) -> bytes | None:
        """Return data; None if there are none, or not as they were written."""
        with self._opened(key) as file:
            found = b"" if file is None else file.read(self.kind.limit + 1)
        magic = self.kind.magic
        start = len(magic) + sha256().digest_size
        data = found[start:]
        if found[:start] != magic + sha256(data).digest():
            return None
        with suppress(OSError):
            os.utime(self._path(key))  # it is in use
        return data

    def has(self, key: str) -> bool:
        """Return whether there is a file that may be read, damaged or not."""
        with self._opened(key) as file:
            return file is not None

    def write(self, key: str, data: bytes) -> None:
        """Keep data, or warn."""
        try:
            make_private_folder(self.folder)
            if not self._is_private():
                return
            parts = (self.kind.magic, sha256(data).digest(), data)
            write_atomically(self._path(key), parts, permissions=0o600)
            self._drop_oldest()
        except OSError as error:
            _warn(self.kind, f"{self.folder}: {error.strerror or error}")

    @contextmanager
    def _opened(self, key: str) -> Iterator[BufferedReader | None]:
        """Open a file, or give None, with a warning if others could have written it."""
        file = None
        try:
            if self._is_private():
                file = open_private_file(self._path(key))
        except PermissionError as error:
            warn_once(
                f"ignoring a *.{self.kind.name} file in {self.folder} and making it "
                f"again: {error.strerror}"
            )
        except OSError:
            pass
        try:
            yield file
        finally:
            if file is not None:
                file.close()

    def _is_private(self) -> bool:
        """Return whether only this user can write to the folder; if not, warn."""
        try:
            require_private_folder(self.folder)
        except PermissionError as error:
            _warn(self.kind, f"{error.filename}: {error.strerror}")
            return False
        return True

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.{self.kind.name}"

    def _drop_oldest(self) -> None:
        ours = re.compile(rf"[0-9a-f]{{64}}\.{self.kind.name}")
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if ours.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # another process was faster
                        state = entry.stat(follow_symlinks=False)
                        found.append((state.st_mtime_ns, state.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.kind.limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def find_file_cache(kind: CacheKind) -> FileCache | None:
    """Return the cache that the environment asks for; None if it asks for none.

    Nor is there one, but for a warning, where the user has no folder.
    """
    named = os.environ.get(kind.variable, "")
    if named == _NONE:
        return None
    if named:
        return FileCache(Path(named), kind)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # then it does not count
        caches = os.path.expanduser("~/.cache")
    if not os.path.isabs(caches):
        _warn(kind, "the user has no home directory")
        return None
    return FileCache(Path(caches, "memcfg", kind.name), kind)


def digest(*parts: str) -> str:
    """Return the digest of all that something depends on."""
    whole = sha256()
    for part in parts:
        data = part.encode()
        whole.update(b"%d\n" % len(data) + data)
    return whole.hexdigest()


def warn_once(text: str) -> None:
    """Warn, if this process has not yet said the same."""
    if text not in _told:
        _told.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=outside())


def _warn(kind: CacheKind, reason: str) -> None:
    warn_once(
        f"{kind.loss.format(reason=reason)}: let {kind.variable} name a folder of your "
        f"own that can be written to, or be {_NONE!r}"
    )
