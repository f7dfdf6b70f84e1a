"""Records of allocations, played into a resource and measured.

Owns the figures and their table. Refuses the loop: that is the native core's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg._core import ReplayPlan
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

    *Ours* are the blocks of the run; the resource may have others.

    Parameters
    ----------
    operations : int
        Allocations and frees that were asked for, failed ones included.
    failures : int
        Allocations that failed.
    first_failure : int or None
        The row of the trace that failed first.
    utilisation : float or None
        Bytes of ours, as asked for, over the limit, when that was; None without a
        failure or a limit.
    skipped : int
        Frees that were left out, since their block had failed.
    left : int
        Blocks that the trace never frees; they were freed at the end.
    left_bytes : int
        Their bytes, as asked for.
    seconds : float
        The sum of the operations' times.
    p50_ns, p99_ns, p999_ns, max_ns : int
        Nanoseconds that 50 %, 99 %, 99.9 % and all of the operations took at most.
        Each holds about 25 ns for reading the clock.
    peak_in_use_bytes : int
        The maximum of bytes of ours, each block rounded up to 64.
    peak_requested_bytes : int
        The maximum of bytes of ours, as asked for.
    peak_reserved_bytes : int
        The maximum that the resource had reserved, for whomever: its own peak if
        the run raised that. If not, the highest of what it had at the start, at each
        new peak in use, at the first failure and at the end.
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
        """The peak of the bytes asked for over that of the bytes in use; 1 of none."""
        return _ratio(self.peak_requested_bytes, self.peak_in_use_bytes)

    @property
    def requested_per_reserved(self) -> float:
        """The peak of the bytes asked for over that of those reserved; 1 of none."""
        return _ratio(self.peak_requested_bytes, self.peak_reserved_bytes)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 1.0


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The figures of all runs; printed, a table of at most 80 columns.

    Parameters
    ----------
    resource : str
        What it was played into.
    runs : tuple of ReplayRun
        The figures of each run, in order. The first one found the resource as it was,
        the others as the one before them left it: without blocks of ours, but perhaps
        with memory.
    """

    resource: str
    runs: tuple[ReplayRun, ...]

    @property
    def median(self) -> ReplayRun:
        """Each figure's median over the runs that have it, the lower of two."""
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


_ALWAYS = ("operations", "failures")  # other lines say something, or are left out


def replay(
    trace: Trace | str | os.PathLike[str],
    resource: Resource,
    *,
    touch: bool = False,
    repeats: int = 1,
) -> ReplayReport:
    """Play a record of allocations into a resource, and measure it.

    Parameters
    ----------
    trace : Trace, str or path-like
        The record, or a file that `Trace.from_csv`, `Trace.load` or
        `Trace.from_snapshot` reads, told apart by its first bytes.
    resource : Resource
        Any resource, simulated ones included.
    touch : bool, default False
        Whether each page of a block is written to, as part of its allocation.
    repeats : int, default 1
        How many runs.

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
        If `repeats` is not positive, or memory is to be touched that a simulated device
        has not.
    Exception
        What the resource raises, but for ResourceExhaustedError: that is a failure, and
        the run goes on.

    Notes
    -----
    One thread plays all rows in their order, each allocation under its tag, with no
    Python in between. Requests that failed when they were recorded are left out. A
    failure does not wait: `Pool.retry_seconds` is not heeded. Whatever happens, a
    signal included, no block of the run is left in the resource.

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
