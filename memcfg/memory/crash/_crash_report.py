"""Crash reports: a folder with a text and a JSON file on how memory ran out.

Owns the folder and its files. A section that fails hides no other one. A section is
written as soon as it is made, so a process that dies meanwhile leaves the earlier ones.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from contextlib import suppress
from contextvars import Context
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg._caller import outside
from memcfg._terminal import WIDTH, shorten
from memcfg.files import make_private_folder
from memcfg.memory.crash._crash_sections import sections_after, sections_before
from memcfg.memory.crash._crash_setting import Asked, Section, contributions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["crash_report", "write_report"]

_FORMAT = "memcfg.crash_report/1"


def crash_report(
    error: BaseException | None = None, folder: str | os.PathLike[str] = "."
) -> Path:
    """Write a report on the memory of this process, for an error or without one.

    Parameters
    ----------
    error : BaseException or None, default None
        What to report, such as a caught `memcfg.errors.ResourceExhaustedError`. None
        reports the present state.
    folder : str or path-like, default "."
        Where to make the report's folder; it is created if it is missing.

    Returns
    -------
    pathlib.Path
        The new folder ``memcfg-crash-TIME-PROCESS`` with ``report.txt``, lines of at
        most 80 columns, and ``report.json``, the same for programs. Only the user may
        read them.

    Raises
    ------
    TypeError
        If `error` is not an exception, or `folder` not a path.
    OSError
        If the files cannot be written.

    See Also
    --------
    memcfg.config.set_crash_reports : Write reports when a call runs out of memory.

    Notes
    -----
    A report says what was requested and by whom, who holds the memory and where, what
    models have loaded, their plans, their memory over a step, their fallbacks, and
    versions. It changes no model and takes no memory of a pool. It has no values of
    arrays, but names of files and lines of code, and of the environment the variables
    of memcfg, OpenMP, malloc and CUDA: ``MEMCFG_*``, ``OMP_*``, ``GOMP_*``,
    ``MALLOC_*`` and ``CUDA_*``.

    Examples
    --------
    >>> import tempfile
    >>> import memcfg as mc
    >>> pool = mc.memory.Pool(limit="1MiB", name="scratch")
    >>> try:
    ...     pool.allocate(2**21)
    ... except MemoryError as error:
    ...     path = mc.crash_report(error, tempfile.mkdtemp())
    >>> sorted(each.name for each in path.iterdir())
    ['report.json', 'report.txt']
    """
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"a report is about an exception or None, not {error!r}")
    frame = sys._getframe(1) if error is None else None
    path, failure = _write(error, os.fspath(folder), Asked("", "", frame))
    if failure is not None:
        raise failure
    return path


def write_report(error: BaseException, folder: str, asked: Asked) -> Path:
    """Write the report of an error; warn if it is incomplete.

    OSError if there is no folder.
    """
    path, failure = _write(error, folder, asked)
    if failure is not None:
        with suppress(Warning):  # if warnings are errors, they would hide this one
            warnings.warn(
                f"the crash report in {path} is incomplete: {failure}",
                RuntimeWarning,
                stacklevel=outside(),
            )
    return path


def _write(
    error: BaseException | None, folder: str, asked: Asked
) -> tuple[Path, OSError | None]:
    """Write a report; return its folder, and why it is incomplete."""
    path = _new_folder(os.fsdecode(folder))
    text, data = _File(path / "report.txt"), _File(path / "report.json")
    try:
        # In a context of its own arrays come from NumPy, not from a pool that is full.
        Context().run(_write_sections, text, data, error, asked)
    finally:
        failures = [each.close() for each in (text, data)]
    return path, next((each for each in failures if each is not None), None)


def _new_folder(folder: str) -> Path:
    """Make a folder with a name that no other has."""
    make_private_folder(folder)
    name = f"memcfg-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for number in count(1):
        path = Path(os.path.abspath(folder), name + f"-{number}" * (number > 1))
        with suppress(FileExistsError):
            path.mkdir(0o700)
            path.chmod(0o700)  # whatever the umask
            return path
    raise AssertionError


class _File:
    """A file whose methods never raise; `close` returns the first failure."""

    def __init__(self, path: Path) -> None:
        self._failure: OSError | None = None
        self._descriptor = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
            os.fchmod(self._descriptor, 0o600)
        except OSError as failure:
            self._failure = failure

    def write(self, text: str) -> None:
        """Write a text, unless an earlier write has failed."""
        if self._failure is not None:
            return
        left = text.encode("utf-8", "backslashreplace")
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as failure:
            self._failure = failure

    def close(self) -> OSError | None:
        """Close the file; return why it is incomplete."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
        return self._failure


def _write_sections(
    text: _File, data: _File, error: BaseException | None, asked: Asked
) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S %z")
    title = "memcfg crash report" if error is not None else "memcfg memory report"
    text.write(f"{title}\n{when}, process {os.getpid()}\n")
    data.write(
        f'{{\n"format": {json.dumps(_FORMAT)},\n"time": {json.dumps(when)},\n'
        f'"process": {os.getpid()}'
    )
    failed: list[str] = []
    keys = {"format", "time", "process", "failed_sections"}
    for section in _sections(error, asked):
        key = _unused(section.key, keys)
        try:
            words, value = section.make()
            document = json.dumps(value, allow_nan=False, default=str)
        except Exception as failure:
            failed.append(key)
            words = f"This section failed. {type(failure).__name__}: {failure}"
            document = json.dumps({"failed": f"{type(failure).__name__}: {failure}"})
        heading = shorten(section.title, WIDTH)
        text.write(f"\n{heading}\n{'-' * len(heading)}\n{_narrow(words)}\n")
        data.write(f",\n{json.dumps(key)}: {document}")
    data.write(f',\n"failed_sections": {json.dumps(failed)}\n}}\n')


def _unused(name: str, keys: set[str]) -> str:
    """Return a key that no section has, since JSON keeps the last of two."""
    key, numbers = name, count(2)
    while key in keys:
        key = f"{name} ({next(numbers)})"
    keys.add(key)
    return key


def _narrow(text: str) -> str:
    return "\n".join(shorten(line, WIDTH) for line in text.splitlines())


def _sections(error: BaseException | None, asked: Asked) -> Iterator[Section]:
    yield from sections_before(error, asked)
    for contribution in contributions:
        try:
            yield from contribution(error, asked.owner)
        except Exception as failure:
            yield _failing(getattr(contribution, "__module__", "a room"), failure)
    yield from sections_after()


def _failing(name: str, failure: Exception) -> Section:
    def make() -> tuple[str, Any]:
        raise failure

    return Section(name, f"Sections of {name}", make)
