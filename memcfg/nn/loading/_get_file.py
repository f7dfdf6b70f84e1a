"""`get_file`: download a file into a cache folder, and extract it on request."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from memcfg._checks import unknown
from memcfg.files import write_atomically
from memcfg.nn.training.progress._progress import is_interactive_logging_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["get_file"]

_CHUNK = 1 << 20  # bytes
_SECONDS = 60.0  # of waiting for a server
_SCHEMES = ("http", "https", "file")
_FORMATS = ("tar", "zip")
_ALGORITHMS = ("auto", "sha256", "md5")


def get_file(
    fname: str | os.PathLike[str] | None = None,
    origin: str | None = None,
    untar: bool = False,
    md5_hash: str | None = None,
    file_hash: str | None = None,
    cache_subdir: str = "datasets",
    hash_algorithm: str = "auto",
    extract: bool = False,
    archive_format: Any = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
) -> str:
    """Return the path of the file of a URL, which is downloaded if it is not there.

    Parameters
    ----------
    fname : str, optional
        The name of the file, by default the last part of the URL.
    origin : str
        The URL, whose scheme is ``http``, ``https`` or ``file``.
    untar : bool, default False
        As `extract`, of a tar file.
    md5_hash : str, optional
        The MD5 of the file.
    file_hash : str, optional
        The SHA-256 or MD5 of the file. A file that is there and has another one is
        downloaded again.
    cache_subdir : str, default "datasets"
        The folder within `cache_dir`.
    hash_algorithm : {"auto", "sha256", "md5"}, default "auto"
        What `file_hash` is; ``"auto"`` decides by its length.
    extract : bool, default False
        Whether to unpack a tar or zip file into a folder, whose path is returned then.
    archive_format : {"auto", "tar", "zip"} or list of them, default "auto"
        What may be unpacked.
    cache_dir : path-like, optional
        The folder of all files, by default the environment's ``KERAS_HOME``, or
        ``~/.keras``.
    force_download : bool, default False
        Whether to download a file that is there.

    Returns
    -------
    str
        The path of the file, or of the folder of an archive.

    Raises
    ------
    ValueError
        If an argument is unknown, the downloaded file has another hash, it is no
        archive, or a member of the archive would be outside of the folder. The folder
        is unchanged then.
    OSError
        If the file cannot be downloaded or written.
    """
    if not origin:
        raise ValueError("get_file: pass origin, the URL of the file")
    if urlsplit(origin).scheme not in _SCHEMES:
        raise ValueError(
            f"get_file: origin must be a URL of {', '.join(_SCHEMES)}, got {origin!r}"
        )
    if md5_hash is not None and file_hash is None:
        file_hash, hash_algorithm = md5_hash, "md5"
    if hash_algorithm not in _ALGORITHMS:
        raise unknown("hash_algorithm", str(hash_algorithm), _ALGORITHMS, "get_file: ")
    formats = _formats("tar" if untar else archive_format)
    folder = Path(cache_dir or os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    folder = folder / cache_subdir
    name = _name(fname, origin)
    target, unpacked = folder / name, folder / name
    if extract or untar:
        stem = name.partition(".")[0] if fname else name
        if fname and "." in name:
            unpacked = folder / f"{stem}_extracted"
        else:
            target = folder / f"{name}_archive"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        known = target.exists() and not force_download
        if not known or not _has_hash(target, file_hash, hash_algorithm):
            _download(origin, target, file_hash, hash_algorithm)
            known = False
        if not (extract or untar):
            return str(target)
        if not known or not unpacked.is_dir():
            _unpack(target, unpacked, formats)
        return str(unpacked)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other calls, of any thread or process, from writing to a folder.

    Some file systems of a network have no locks; calls there do not wait.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _name(fname: Any, origin: str) -> str:
    name = os.fspath(fname) if fname else PurePosixPath(urlsplit(origin).path).name
    if not name or name in (".", "..") or Path(name).name != name:
        raise ValueError(
            f"get_file: fname must be a name without a folder, got {name!r}; cache_dir "
            "and cache_subdir are its folder"
        )
    return name


def _formats(value: Any) -> tuple[str, ...]:
    if value == "auto":
        return _FORMATS
    several = (value,) if isinstance(value, str) else tuple(value or ())
    for each in several:
        if each not in _FORMATS:
            raise unknown("archive_format", str(each), _FORMATS, "get_file: ")
    return several


def _hasher(file_hash: str, algorithm: str) -> Any:
    if algorithm == "sha256" or (algorithm == "auto" and len(file_hash) == 64):
        return hashlib.sha256()
    return hashlib.md5(usedforsecurity=False)


def _has_hash(path: Path, file_hash: str | None, algorithm: str) -> bool:
    if file_hash is None:
        return True
    hasher = _hasher(file_hash, algorithm)
    with path.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            hasher.update(piece)
    return bool(hasher.hexdigest() == file_hash.lower())


def _download(origin: str, target: Path, file_hash: str | None, algorithm: str) -> None:
    """Write the file of a URL; ValueError if it has another hash."""
    if is_interactive_logging_enabled():
        print(f"Downloading {origin}")
    hasher = None if file_hash is None else _hasher(file_hash, algorithm)

    def pieces(stream: Any) -> Iterator[bytes]:
        while piece := stream.read(_CHUNK):
            if hasher is not None:
                hasher.update(piece)
            yield piece
        if hasher is not None and file_hash is not None:
            found = hasher.hexdigest()
            if found != file_hash.lower():
                raise ValueError(
                    f"get_file: {origin} has the {hasher.name} hash {found}, not "
                    f"{file_hash}"
                )

    with urlopen(origin, timeout=_SECONDS) as stream:
        write_atomically(target, pieces(stream))


def _unpack(archive: Path, folder: Path, formats: tuple[str, ...]) -> None:
    """Unpack an archive into a folder as a whole, or not at all."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"get_file: {folder} is a file, not the folder of the archive: pass fname"
        )
    with _opened(archive, formats) as opened, _beside(folder) as made:
        if isinstance(opened, zipfile.ZipFile):
            for each in opened.namelist():
                _check_member(each)
            opened.extractall(made)
        else:
            _untar(opened, made)
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        made.rename(folder)


@contextmanager
def _opened(archive: Path, formats: tuple[str, ...]) -> Iterator[Any]:
    if "tar" in formats and tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            yield opened
    elif "zip" in formats and zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened_zip:
            yield opened_zip
    else:
        known = " or ".join(formats) or "archive"
        raise ValueError(f"get_file: {archive} is no {known} file: leave extract out")


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Make a folder that is removed at the end, unless it was renamed."""
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    inside = made / folder.name
    inside.mkdir()
    try:
        yield inside
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_member(name: str) -> None:
    """Raise ValueError unless a member lies within the folder."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise ValueError(f"get_file: the archive has {name!r}, outside of its folder")


def _untar(opened: tarfile.TarFile, folder: Path) -> None:
    for each in opened:
        _check_member(each.name)
        if not (each.isreg() or each.isdir() or each.issym() or each.islnk()):
            raise ValueError(f"get_file: the archive has {each.name!r}, no file")
        if not hasattr(tarfile, "data_filter") and (each.issym() or each.islnk()):
            raise ValueError(
                f"get_file: the archive has the link {each.name!r}, which this version "
                "of Python cannot check: unpack it yourself, or use Python 3.12"
            )
    if not hasattr(tarfile, "data_filter"):
        opened.extractall(folder)  # members were checked, and none is a link
        return
    try:
        opened.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise ValueError(f"get_file: the archive is refused: {error}") from error
