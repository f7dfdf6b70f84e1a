"""What was found out at some cost, kept on the disk: files that are whole and checked.

By default they are in folders of ``memcfg`` in the user's folder of caches, as the XDG
specification has it; a variable of the environment names another one, or is ``none``.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from memcfg._caller import outside
from memcfg.files import read_file, write_atomically

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
    again, and a folder that cannot be written to is told of once a process.

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
        path = self._path(key)
        try:
            found = read_file(path, self.kind.limit)
        except OSError:
            return None
        magic = self.kind.magic
        start = len(magic) + sha256().digest_size
        data = found[start:]
        if found[:start] != magic + sha256(data).digest():
            return None
        with suppress(OSError):
            os.utime(path)  # it is in use
        return data

    def has(self, key: str) -> bool:
        """Whether there is a file, damaged or not."""
        return self._path(key).exists()

    def write(self, key: str, data: bytes) -> None:
        """Keep data, or warn."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = (self.kind.magic, sha256(data).digest(), data)
            write_atomically(self._path(key), parts)
            self._drop_oldest()
        except OSError as error:
            _warn(self.kind, f"{self.folder}: {error.strerror or error}")

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
        f"{kind.loss.format(reason=reason)}: let {kind.variable} name a folder that "
        f"can be written to, or be {_NONE!r}"
    )
