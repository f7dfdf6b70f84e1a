"""Machine code of kernels on the disk: files that are whole, checked, and not too many.

``MEMCFG_CUDA_CACHE`` names the folder, or is ``none``; by default it is
``memcfg/cuda`` in the user's folder of caches, as the XDG specification has it.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from memcfg.files import read_file, write_atomically

_VARIABLE = "MEMCFG_CUDA_CACHE"
_NONE = "none"
_LIMIT = 256 << 20  # bytes of all files in a folder
_MAGIC = b"memcfg cuda 1\n"  # a file's beginning, before the digest and the image
_OURS = re.compile(r"[0-9a-f]{64}\.image|\.memcfg-[0-9a-f]{16}")  # or left by a kill


class ImageCache:
    """Images by the digests of what they were compiled from, in a folder.

    A file has another name until it is whole; one that is damaged is none. The oldest
    make way where they are more than 256 MiB. What cannot be read or kept is compiled
    again, and a folder that cannot be written to is told of once a process.

    Parameters
    ----------
    folder : Path
        Where the files lie; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> bytes | None:
        """Return an image; None if there is none, or not as it was written."""
        path = self._path(key)
        try:
            data = read_file(path, _LIMIT)
        except OSError:
            return None
        start = len(_MAGIC) + sha256().digest_size
        image = data[start:]
        if data[:start] != _MAGIC + sha256(image).digest():
            return None
        with suppress(OSError):
            os.utime(path)  # it is in use
        return image

    def write(self, key: str, image: bytes) -> None:
        """Keep an image, or warn."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = (_MAGIC, sha256(image).digest(), image)
            write_atomically(self._path(key), parts)
            self._drop_oldest()
        except OSError as error:
            _warn(f"{self.folder}: {error.strerror or error}")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.image"

    def _drop_oldest(self) -> None:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # another process was faster
                        state = entry.stat(follow_symlinks=False)
                        found.append((state.st_mtime_ns, state.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= _LIMIT:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


_told: set[str] = set()  # reasons, in this process


def _warn(reason: str) -> None:
    if reason in _told:
        return
    _told.add(reason)
    warnings.warn(
        f"compiled kernels are not kept on the disk ({reason}), and are compiled again "
        f"in each process: let {_VARIABLE} name a folder that can be written to, or be "
        f"{_NONE!r}",
        RuntimeWarning,
        stacklevel=3,
    )


def find_image_cache() -> ImageCache | None:
    """Return the cache that the environment asks for; None if it asks for none.

    Nor is there one, but for a warning, where the user has no folder.
    """
    named = os.environ.get(_VARIABLE, "")
    if named == _NONE:
        return None
    if named:
        return ImageCache(Path(named))
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # then it does not count
        caches = os.path.expanduser("~/.cache")
    if not os.path.isabs(caches):
        _warn("the user has no home directory")
        return None
    return ImageCache(Path(caches, "memcfg", "cuda"))


def image_key(*parts: str) -> str:
    """Return the digest of all that an image depends on."""
    whole = sha256()
    for part in parts:
        data = part.encode()
        whole.update(b"%d\n" % len(data) + data)
    return whole.hexdigest()
