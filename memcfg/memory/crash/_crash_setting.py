"""Where crash reports are written, and what other rooms add to them."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._core._environment import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

__all__ = [
    "MAX_REPORTS",
    "Asked",
    "Section",
    "contributions",
    "crash_setting",
]

MAX_REPORTS = 3  # of a process, unless set otherwise
_VARIABLE = "MEMCFG_CRASH_REPORTS"
_RESERVE = 1 << 22  # bytes of addresses that are freed before a report is written


class Section(NamedTuple):
    """A part of a report, made separately so that its failure hides no other part."""

    key: str  # in the JSON file
    title: str
    make: Callable[[], tuple[str, Any]]  # text of 80 columns, and what JSON can express


class Asked(NamedTuple):
    """The call during which memory ran out, and who made it."""

    call: str
    owner: str = ""  # the model, by its name in listings of memory
    frame: FrameType | None = None  # of the caller; None: the error's traceback has it


class CrashSetting:
    """The folder of reports, and how many more may be written."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Return to the settings of the environment."""
        self._folder: str | None = None
        self._is_set = False
        self._reserve: bytes | None = None
        self.max_reports = MAX_REPORTS
        self._numbers = count()
        if self.folder is not None:
            self.take_reserve()

    def set(self, folder: str | None, max_reports: int) -> None:
        """Allow up to `max_reports` reports in a folder from now on; None: none."""
        self._folder, self._is_set = folder, True
        self.max_reports, self._numbers = max_reports, count()
        if folder is None:
            self._reserve = None
        else:
            self.take_reserve()

    @property
    def folder(self) -> str | None:
        """The folder in which reports are made; None if none are."""
        return self._folder if self._is_set else value_of(_VARIABLE) or None

    def take_number(self) -> bool:
        """Return whether another report may be written, and count it."""
        return next(self._numbers) < self.max_reports

    def take_reserve(self) -> None:
        """Reserve addresses for a report; untouched, they take no memory."""
        with suppress(MemoryError):
            self._reserve = bytes(_RESERVE)

    def free_reserve(self) -> None:
        """Free the addresses that were reserved for a report."""
        self._reserve = None


crash_setting = CrashSetting()
# Functions of the error and of the failing owner that add sections to every report.
contributions: list[Callable[[BaseException | None, str], Iterable[Section]]] = []
