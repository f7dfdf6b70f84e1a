"""The timeline of a record of allocations, from its columns."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg._caller import shown_path
from memcfg.timeline._memory_timeline import MemoryTimeline
from memcfg.timeline._timeline_parts import Box, Event
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Recorded", "origin_of", "record_timeline"]

_KINDS = ("allocate", "free", "refused")


class Recorded(NamedTuple):
    """An event of a record: a block, its bytes, its tag, and who took it."""

    action: int  # an index of `_KINDS`
    address: int
    nbytes: int
    seconds: float
    tag: str
    layer: str = ""  # the function, or the pool
    line: str = ""
    origin: str = ""
    requested_bytes: int | None = None  # before rounding


def record_timeline(
    rows: Iterable[Recorded],
    limit_bytes: int | None,
    *,
    title: str = "Recorded memory",
    end: float | None = None,
    facts: Mapping[str, str] | None = None,
) -> MemoryTimeline:
    """Return the timeline of a record, which ended at a time or with its last event."""
    events: list[Event] = []
    boxes: list[Box] = []
    times: list[float] = []
    live = 0
    ends: dict[int, int] = {}
    alive: dict[int, int] = {}  # address -> number of the box
    for number, row in enumerate(rows):
        kind = _KINDS[row.action]
        if kind == "allocate":
            live += row.nbytes
            alive[row.address] = len(boxes)
            boxes.append(_box(row, number))
        if kind == "free":
            live -= row.nbytes
            ends[alive.pop(row.address)] = number
        name = row.tag or "untagged"
        events.append(Event(name, kind, live, False, row.layer, row.line))
        times.append(row.seconds)
    runs = _runs((box.offset, box.offset + box.nbytes) for box in boxes)
    starts = [address for _, address in runs]
    placed = []
    for number, box in enumerate(boxes):
        offset, address = runs[bisect_right(starts, box.offset) - 1]
        last = ends.get(number, len(events))
        placed.append(replace(box, offset=offset + box.offset - address, end=last))
    peak = max((event.live_bytes for event in events), default=0)
    first = times[0] if times else (end or 0.0)
    last_second = times[-1] if times else 0.0
    times.append(last_second if end is None else max(end, last_second))
    return MemoryTimeline(
        title=title,
        events=tuple(events),
        boxes=tuple(placed),
        planned=tuple(time - first for time in times),
        limit_bytes=limit_bytes,
        peak_bytes=peak,
        is_recorded=True,
        facts={
            **(facts or {}),
            "allocations": str(len(boxes)),
            "still there": exact(live),
        },
        runs=runs or ((0, 0),),
    )


def _box(row: Recorded, number: int) -> Box:
    """Return the box of an allocation; its place and its end are known later."""
    requested = row.requested_bytes
    return Box(
        name=row.tag or f"{row.nbytes} B",
        role=row.tag or "untagged",
        offset=row.address,
        nbytes=row.nbytes,
        begin=number,
        end=0,
        origin=row.origin,
        layer=row.layer,
        line=row.line,
        requested_bytes=None if requested == row.nbytes else requested,
    )


def origin_of(stack: Sequence[tuple[str, int, str]]) -> tuple[str, str]:
    """Return the function and the line of the innermost call."""
    if not stack:
        return "", ""
    path, line, function = stack[0]
    return function, f"{shown_path(path)}:{line}"


def _runs(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (offset, address) of each extent that was ever in use, side by side."""
    runs: list[tuple[int, int]] = []
    offset = end = 0
    for begin, stop in sorted(spans):
        if not runs or begin > end:
            if runs:
                offset += end - runs[-1][1]
            runs.append((offset, begin))
            end = begin
        end = max(end, stop)
    return tuple(runs)
