"""Records of allocations as CSV, in the format of RMM's logs.

Owns the grammar: columns ``Thread,Time,Action,Pointer,Size,Stream``. `_trace_columns`
checks the records.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.errors import FormatError
from memcfg.files import open_file, write_atomically
from memcfg.memory._trace_columns import ALLOCATE, FAILURE, FREE, first_fault

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["read", "write"]

_COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size")
_ACTIONS = {
    "allocate": ALLOCATE,
    "free": FREE,
    "deallocate": FREE,  # as in RMM's guide
    "allocate failure": FAILURE,
}
# the line of the header, and the columns
_Row: TypeAlias = tuple[int, int, float, int, int, int]
_NAMES = ("allocate", "free", "allocate failure")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])")
_EPOCH = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_DAY = 86400  # seconds


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the columns of a log; FormatError names an invalid line."""
    try:
        with io.TextIOWrapper(open_file(path), "utf-8", newline="") as file:
            rows = _rows(file)
    except (ValueError, csv.Error) as error:
        raise FormatError(f"{path}: {error}") from None
    line, thread, seconds, action, address, nbytes = (
        zip(*rows, strict=True) if rows else [()] * 6
    )
    columns: dict[str, Any] = {
        "action": np.array(action, np.uint8),
        "address": np.array(address, np.uint64),
        "nbytes": np.array(nbytes, np.uint64),
    }
    fault = first_fault(**columns)
    if fault is not None:
        row, what = fault
        raise FormatError(f"{path}: line {line[row]} {what}")
    times = {"thread": np.array(thread, np.int64), "seconds": _unwrapped(seconds)}
    return columns | times


def _rows(file: Iterable[str]) -> list[_Row]:
    """Read the rows, without those of zero bytes, which hold nothing."""
    lines = csv.reader(file, strict=True)
    header = next(lines, [])
    missing = [name for name in _COLUMNS if header.count(name) != 1]
    if missing:
        raise ValueError(f"line 1 has not one column {missing[0]}")
    pick = itemgetter(*map(header.index, _COLUMNS))
    rows = []
    try:
        for fields in filter(None, lines):  # skip empty lines
            if len(fields) != len(header):
                raise ValueError(f"{len(fields)} fields, not {len(header)}")
            row = _row(lines.line_num, *pick(fields))
            if row[-1] > 0:
                rows.append(row)
    except ValueError as error:
        raise ValueError(f"line {lines.line_num}: {error}") from None
    return rows


def _row(
    line: int, thread: str, time: str, action: str, pointer: str, size: str
) -> _Row:
    kind = _ACTIONS.get(action)
    if kind is None:
        raise ValueError(f"no action: {action!r}")
    address = 0 if kind == FAILURE else _address(pointer)
    nbytes = _decimal(size, 2**64)
    return line, _decimal(thread, 2**63), _seconds(time), kind, address, nbytes


def _decimal(text: str, end: int) -> int:
    if text.isdecimal() and text.isascii() and (number := int(text)) < end:
        return number
    raise ValueError(f"no number below {end}: {text!r}")


def _address(text: str) -> int:
    """Read a pointer as the C library prints it, or without its ``0x``."""
    if text == "(nil)":
        return 0
    with suppress(ValueError):
        # `int` would accept signs, spaces and underscores
        if text.isalnum() and text.isascii() and (number := int(text, 16)) < 2**64:
            return number
    raise ValueError(f"no pointer: {text!r}")


def _seconds(text: str) -> float:
    """Read a time of day, or seconds since 1970."""
    whole, rest = _clock(text[:8]), text[8:]
    if not whole and _EPOCH.fullmatch(text):
        return float(text)
    if whole and not rest:
        return float(whole)
    digits = rest[1:]
    if whole and rest[0] in ".:" and digits.isdecimal() and digits.isascii():
        return float(f"{whole}.{digits}")
    raise ValueError(f"no time: {text!r}")


def _clock(text: str) -> str:
    """Return the seconds since midnight as digits, or "" if it is not a time."""
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return ""
    hours, minutes, seconds = map(int, clock.groups())
    return str(3600 * hours + 60 * minutes + seconds)


def _unwrapped(seconds: Sequence[float]) -> NDArray[np.float64]:
    """Continue times past midnight; threads may be slightly out of order."""
    times = np.array(seconds, np.float64)
    if not len(times) or times.max() >= _DAY:
        return times
    steps = np.diff(times, prepend=times[0])
    days = (steps < -_DAY / 2).astype(int) - (steps > _DAY / 2)
    return np.asarray(times + _DAY * np.cumsum(days), np.float64)


def write(
    path: str | os.PathLike[str], *columns: NDArray[Any], overwrite: bool
) -> None:
    """Write threads, seconds, actions, addresses and sizes as a log."""
    lines = ["Thread,Time,Action,Pointer,Size,Stream\n"]
    lines += (
        f"{thread},{_time(second)},{_NAMES[action]},{address:#x},{nbytes},0\n"
        for thread, second, action, address, nbytes in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )
    write_atomically(path, "".join(lines).encode(), overwrite=overwrite)


def _time(seconds: float) -> str:
    whole, micros = divmod(round(seconds * 1e6) % (_DAY * 10**6), 10**6)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{whole:02}.{micros:06}"
