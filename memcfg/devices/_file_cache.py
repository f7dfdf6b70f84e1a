"""A cache on disk for results that took time to find, in files that are verified.

By default the files are in ``memcfg`` in the user's cache folder, by the XDG
specification. An environment variable names another folder, or is ``none``.
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
_told: set[str] = set()  # warnings already given in this process


@dataclass(frozen=True)
class CacheKind:
    """A kind of cached data.

    Parameters
    ----------
    name : str
        The name of the folder, and the suffix of its files.
    variable : str
        The environment variable that names another folder.
    limit : int
        The most bytes of all files in a folder.
    loss : str
        The text of a warning if nothing can be cached, with a placeholder for the
        reason.
    """

    name: str
    variable: str
    limit: int
    loss: str

    @property
    def magic(self) -> bytes:
        """The beginning of a file, before the digest and the data."""
        return f"memcfg {self.name} 1\n".encode()


class FileCache:
    """A folder of data, by the digests of what they were made from.

    A file gets its name once it is complete; damaged files are ignored. The oldest
    files are deleted above the limit. Data that cannot be read or cached must be made
    again. A folder that cannot be written to causes one warning per process. So does a
    folder or file that other users could have written, which is neither read nor
    written.

    Parameters
    ----------
    folder : Path
        The folder, which is created with the first file.
    kind : CacheKind
        The kind of data.
    """

    def __init__(self, folder: Path, kind: CacheKind) -> None:
        self.folder = folder
        self.kind = kind

    def read(self, key: str) -> bytes | None:
        """Return data, or None if there is no intact file."""
        with self._opened(key) as file:
            content = b"" if file is None else file.read(self.kind.limit + 1)
        magic = self.kind.magic
        start = len(magic) + sha256().digest_size
        data = content[start:]
        if content[:start] != magic + sha256(data).digest():
            return None
        with suppress(OSError):
            os.utime(self._path(key))  # marks the file as recently used
        return data

    def has(self, key: str) -> bool:
        """Return whether there is a readable file, damaged or not."""
        with self._opened(key) as file:
            return file is not None

    def write(self, key: str, data: bytes) -> None:
        """Write data, or warn."""
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
        """Open a file, or yield None; warn if others could have written it."""
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
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if ours.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # another process was faster
                        state = entry.stat(follow_symlinks=False)
                        files.append((state.st_mtime_ns, state.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.kind.limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def find_file_cache(kind: CacheKind) -> FileCache | None:
    """Return the cache that the environment selects, or None.

    Returns None, with a warning, also if the user has no cache folder.
    """
    named = os.environ.get(kind.variable, "")
    if named == _NONE:
        return None
    if named:
        return FileCache(Path(named), kind)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # a relative path does not count
        caches = os.path.expanduser("~/.cache")
    if not os.path.isabs(caches):
        _warn(kind, "the user has no home directory")
        return None
    return FileCache(Path(caches, "memcfg", kind.name), kind)


def digest(*parts: str) -> str:
    """Return the digest of the parts that a result depends on."""
    whole = sha256()
    for part in parts:
        data = part.encode()
        whole.update(b"%d\n" % len(data) + data)
    return whole.hexdigest()


def warn_once(text: str) -> None:
    """Warn, unless this process has already given the same warning."""
    if text not in _told:
        _told.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=outside())


def _warn(kind: CacheKind, reason: str) -> None:
    warn_once(
        f"{kind.loss.format(reason=reason)}: let {kind.variable} name a folder of your "
        f"own that can be written to, or be {_NONE!r}"
    )
