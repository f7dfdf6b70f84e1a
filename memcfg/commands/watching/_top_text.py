"""Live reports as text, for a terminal of any width."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from memcfg._terminal import fit, shorten, writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.memory.live._live_report import LivePool, LiveReport

__all__ = ["list_reports", "report_lines"]

_PID, _NAME = 8, 18  # columns of a number, and of a name at least
_SIZE = 12  # of a size, with the space before it
_BAR = 14  # of a bar, likewise
_OWNERS = 6  # of a pool, the largest ones


def report_lines(report: LiveReport, columns: int) -> list[str]:
    """Return what a process holds: its numbers, its pools, and the owners of each."""
    moment = time.strftime("%H:%M:%S", time.localtime(report.time))
    lines = [
        f"Process {report.pid}, {report.program or 'Python'}, at {moment}",
        _total("in pools", report.tracked_bytes, report.tracked_limit_bytes),
        _total("resident", report.resident_bytes, report.resident_limit_bytes),
    ]
    lines = [shorten(line, columns, keep="start") for line in lines]
    layout = _Layout(columns)
    lines += ["", layout.head()]
    for pool in report.pools:
        lines += _pool_lines(pool, layout)
    return lines if report.pools else [*lines[:3], "There is no pool yet."]


def list_reports(reports: Iterable[LiveReport], columns: int) -> list[str]:
    """Return a line for each process: its number, its program and its bytes."""
    count = 2 if columns >= _PID + _NAME + 2 * _SIZE else 1
    name = max(columns - _PID - count * _SIZE, 1)
    heads = ("In pools", "Resident")
    lines = [fit("PID", _PID) + fit("Program", name) + _right(*heads[:count])]
    for report in reports:
        sizes = map(format_bytes, (report.tracked_bytes, report.resident_bytes))
        program = fit(report.program or "Python", name, keep="end")
        lines.append(f"{report.pid:<{_PID}}{program}{_right(*list(sizes)[:count])}")
    return lines


class _Layout:
    """The columns of a table: those at its right end are left out if it is narrow."""

    def __init__(self, columns: int) -> None:
        left = columns - _NAME - _SIZE
        self.limit = left >= _SIZE
        self.peak = left >= 2 * _SIZE
        self.bar = left >= 2 * _SIZE + _BAR
        sizes = 1 + self.limit + self.peak
        self.name = max(columns - sizes * _SIZE - self.bar * _BAR, 1)

    def head(self) -> str:
        return self.row("Pool, owners", None, ["In use", "Limit", "Peak"])

    def row(self, name: str, share: float | None, sizes: Sequence[str]) -> str:
        """Return a line; a share from 0 to 1 is a bar."""
        shown = sizes[: 1 + self.limit + self.peak]
        bar = ""
        if self.bar:
            full = 0 if share is None else max(round(share * (_BAR - 2)), share > 0)
            bar = "  " + writable("█") * full + " " * (_BAR - 2 - full)
        return (fit(name, self.name, keep="ends") + bar + _right(*shown)).rstrip()


def _pool_lines(pool: LivePool, layout: _Layout) -> list[str]:
    limit = pool.limit_bytes
    bound = "none" if limit is None else format_bytes(limit)
    share = pool.current_bytes / limit if limit else None
    sizes = [format_bytes(pool.current_bytes), bound, format_bytes(pool.peak_bytes)]
    name = pool.name if pool.name == pool.kind else f"{pool.name} ({pool.kind})"
    lines = [layout.row(name, share, sizes)]
    for owner in pool.owners[:_OWNERS]:
        part = owner.nbytes / pool.current_bytes if pool.current_bytes else None
        lines.append(layout.row(f"  {owner.name}", part, [format_bytes(owner.nbytes)]))
    more = len(pool.owners[_OWNERS:]) + pool.more_owners
    return [*lines, f"  {more} more"] if more else lines


def _total(what: str, nbytes: int, limit: int | None) -> str:
    bound = "no limit" if limit is None else f"limit {format_bytes(limit)}"
    return f"{what} {format_bytes(nbytes)}, {bound}"


def _right(*sizes: str) -> str:
    return "".join(fit(size, _SIZE, right=True) for size in sizes)
