"""Replay of recorded allocations in a resource, with measurements.

Owns the figures and their table. The loop belongs to the native core.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg._core import ReplayPlan
from memcfg._html import report_of_text
from memcfg.files import open_file
from memcfg.memory._trace import Trace
from memcfg.units import format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from memcfg._core import Resource

__all__ = ["ReplayReport", "ReplayRun", "replay"]


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """The figures of one run.

    The resource may have other blocks than those of the run.

    Parameters
    ----------
    operations : int
        Requested allocations and frees, including failed ones.
    failures : int
        Allocations that failed.
    first_failure : int or None
        The row of the trace that failed first.
    utilisation : float or None
        Requested bytes of the run's blocks at the first failure, divided by the limit;
        None without a failure or a limit.
    skipped : int
        Frees that were skipped because the allocation of their block had failed.
    left : int
        Blocks that the trace never frees; they were freed at the end.
    left_bytes : int
        Their requested bytes.
    seconds : float
        The sum of the operations' times.
    p50_ns, p99_ns, p999_ns, max_ns : int
        Percentiles and maximum of the operations' times in nanoseconds, each including
        about 25 ns for reading the clock.
    peak_in_use_bytes : int
        The peak of the run's bytes, each block rounded up to 64.
    peak_requested_bytes : int
        The peak of the run's requested bytes.
    peak_reserved_bytes : int
        The peak of the bytes that the resource had reserved for all users: its own peak
        if the run raised it, else the highest of the values at the start, at each new
        peak in use, at the first failure and at the end.
    """

    operations: int
    failures: int
    first_failure: int | None
    utilisation: float | None
    skipped: int
    left: int
    left_bytes: int
    seconds: float
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    peak_in_use_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int

    @property
    def requested_per_in_use(self) -> float:
        """The peak of requested bytes over that of the bytes in use; 1 without any."""
        return _ratio(self.peak_requested_bytes, self.peak_in_use_bytes)

    @property
    def requested_per_reserved(self) -> float:
        """The peak of requested bytes over that of reserved bytes; 1 without any."""
        return _ratio(self.peak_requested_bytes, self.peak_reserved_bytes)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 1.0


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The figures of all runs; printed as a table of at most 80 columns.

    Parameters
    ----------
    resource : str
        The resource that was used.
    runs : tuple of ReplayRun
        The figures of each run, in order. The first run found the resource as it was,
        the others as the previous run left it: without blocks of the run, but perhaps
        with reserved memory.
    """

    resource: str
    runs: tuple[ReplayRun, ...]

    @property
    def median(self) -> ReplayRun:
        """The median of each figure over the runs that have it, the lower of two."""
        return self._each(median_low)

    def _each(self, choose: Callable[[list[Any]], Any]) -> ReplayRun:
        figures: dict[str, Any] = {}
        for each in fields(ReplayRun):
            values = [getattr(run, each.name) for run in self.runs]
            known = [value for value in values if value is not None]
            figures[each.name] = choose(known) if known else None
        return ReplayRun(**figures)

    def __str__(self) -> str:
        chosen = [self._each(choose) for choose in (median_low, min, max)]
        columns = chosen if len(self.runs) > 1 else chosen[:1]
        heads = ("median", "min", "max") if len(self.runs) > 1 else ("",)
        times = f", {len(self.runs)} times" if len(self.runs) > 1 else ""
        lines = [f"Replay into {self.resource}"[:60] + times]
        lines.append(" " * 26 + "".join(f"{head:>14}" for head in heads))
        for label, write in _LINES.items():
            cells = [write(run) for run in columns]
            if label in _ALWAYS or set(cells) - {"-", "0", "0 B"}:
                row = "".join(f"{cell:>14}" for cell in cells)
                lines.append(f"  {label:<24}" + row)
        return "\n".join(line.rstrip() for line in lines if line.strip())

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(str(self))


def _read(path: str | os.PathLike[str]) -> Trace:
    with open_file(path) as file:
        start = file.read(2)
    if start == b"PK":
        return Trace.load(path)
    return (Trace.from_snapshot if start[:1] == b"\x80" else Trace.from_csv)(path)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


_LINES: dict[str, Callable[[ReplayRun], str]] = {
    "operations": lambda run: f"{run.operations:,}",
    "failures": lambda run: f"{run.failures:,}",
    "first failure": lambda run: (
        "-" if run.first_failure is None else f"row {run.first_failure:,}"
    ),
    "utilisation then": lambda run: _share(run.utilisation),
    "frees skipped": lambda run: f"{run.skipped:,}",
    "blocks left": lambda run: f"{run.left:,}",
    "bytes left": lambda run: format_bytes(run.left_bytes),
    "seconds": lambda run: f"{run.seconds:.4g}",
    "ns, 50 %": lambda run: f"{run.p50_ns:,}",
    "ns, 99 %": lambda run: f"{run.p99_ns:,}",
    "ns, 99.9 %": lambda run: f"{run.p999_ns:,}",
    "ns, max": lambda run: f"{run.max_ns:,}",
    "peak in use": lambda run: format_bytes(run.peak_in_use_bytes),
    "peak requested": lambda run: format_bytes(run.peak_requested_bytes),
    "peak reserved": lambda run: format_bytes(run.peak_reserved_bytes),
    "requested / in use": lambda run: _share(run.requested_per_in_use),
    "requested / reserved": lambda run: _share(run.requested_per_reserved),
}


_ALWAYS = ("operations", "failures")  # ignore other lines


def replay(
    trace: Trace | str | os.PathLike[str],
    resource: Resource,
    *,
    touch: bool = False,
    repeats: int = 1,
) -> ReplayReport:
    """Replay recorded allocations in a resource, and measure them.

    Parameters
    ----------
    trace : Trace, str or path-like
        The record, or a file for `Trace.from_csv`, `Trace.load` or
        `Trace.from_snapshot`, recognized by its first bytes.
    resource : Resource
        Any resource, including simulated ones.
    touch : bool, default False
        Whether to write to each page of a block, as part of its allocation.
    repeats : int, default 1
        The number of runs.

    Returns
    -------
    ReplayReport
        The figures of each run, and their medians.

    Raises
    ------
    FormatError, OSError
        If the file cannot be read.
    TypeError
        If an argument is of another type.
    ValueError
        If `repeats` is not positive, or `touch` is True for a simulated device, which
        has no memory.
    Exception
        Any other exception of the resource. A ResourceExhaustedError counts as a
        failure, and the run continues.

    Notes
    -----
    One thread plays all rows in order, each allocation under its tag, without Python
    code in between. Requests that failed when they were recorded are skipped. A failed
    allocation is not retried: `Pool.retry_seconds` is ignored. No block of the run is
    ever left in the resource, even after an error or a signal.

    Examples
    --------
    >>> from memcfg import memory
    >>> trace = memory.Trace(
    ...     action=[0, 0, 1, 0], address=[1, 2, 1, 1], nbytes=[600, 300, 600, 800]
    ... )
    >>> report = memory.replay(trace, memory.Pool(limit=1024))
    >>> run = report.median
    >>> run.operations, run.failures, run.first_failure, run.left
    (4, 1, 3, 1)
    >>> run.peak_requested_bytes, run.peak_in_use_bytes
    (900, 960)
    """
    repeats = count(repeats, "repeats")
    if not isinstance(trace, Trace):
        trace = _read(trace)
    plan = ReplayPlan(
        trace.action.tobytes(),
        trace.address.tobytes(),
        trace.nbytes.tobytes(),
        trace.tag.tobytes(),
        trace.tags,
    )
    runs = tuple(_run(*plan.play(resource, touch)) for _ in range(repeats))
    return ReplayReport(_title(resource), runs)


def _run(figures: dict[str, Any], nanoseconds: bytes) -> ReplayRun:
    times = np.frombuffer(nanoseconds, np.uint64)
    shares = (0.5, 0.99, 0.999, 1.0)
    if len(times):
        quantiles = np.quantile(times, shares, method="inverted_cdf")
    else:
        quantiles = np.zeros(len(shares))
    p50, p99, p999, highest = (int(each) for each in quantiles)
    return ReplayRun(
        operations=len(times),
        seconds=int(times.sum()) / 1e9,
        p50_ns=p50,
        p99_ns=p99,
        p999_ns=p999,
        max_ns=highest,
        **figures,
    )


def _title(resource: Resource) -> str:
    kind = type(resource).__name__
    return f"{kind} {resource.name!r}" if resource.name else kind
