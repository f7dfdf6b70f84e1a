"""The timeline of a record of allocations, from its columns."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg._caller import shown_path
from memcfg.timeline._memory_timeline import MemoryTimeline
from memcfg.timeline._timeline_parts import Box, Event
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["record_timeline"]

_KINDS = ("allocate", "free", "refused")


def record_timeline(
    rows: Iterable[tuple[int, int, int, float, str, int]],
    stacks: Sequence[Sequence[tuple[str, int, str]]],
    limit_bytes: int | None,
) -> MemoryTimeline:
    """Return the timeline of rows: action, address, bytes, seconds, tag, stack."""
    origins = [_origin(stack) for stack in stacks]
    events: list[Event] = []
    boxes: list[Box] = []
    times: list[float] = []
    live = 0
    ends: dict[int, int] = {}
    alive: dict[int, int] = {}  # address -> number of the box
    for number, (action, address, nbytes, seconds, tag, stack) in enumerate(rows):
        line, function = origins[stack] if stack >= 0 else ("", "")
        kind = _KINDS[action]
        if kind == "allocate":
            live += nbytes
            alive[address] = len(boxes)
            boxes.append(
                Box(
                    name=tag or f"{nbytes} B",
                    role=tag or "untagged",
                    offset=address,
                    nbytes=nbytes,
                    begin=number,
                    end=0,
                    layer=function,
                    line=line,
                )
            )
        if kind == "free":
            live -= nbytes
            ends[alive.pop(address)] = number
        events.append(Event(tag or "untagged", kind, live, False, function, line))
        times.append(seconds)
    runs = _runs((box.offset, box.offset + box.nbytes) for box in boxes)
    starts = [address for _, address in runs]
    placed = []
    for number, box in enumerate(boxes):
        offset, address = runs[bisect_right(starts, box.offset) - 1]
        end = ends.get(number, len(events))
        placed.append(replace(box, offset=offset + box.offset - address, end=end))
    peak = max((event.live_bytes for event in events), default=0)
    first = times[0] if times else 0.0
    return MemoryTimeline(
        title="Recorded memory",
        events=tuple(events),
        boxes=tuple(placed),
        planned=tuple(time - first for time in (*times, *times[-1:])) or (0.0,),
        limit_bytes=limit_bytes,
        peak_bytes=peak,
        is_recorded=True,
        facts={"allocations": str(len(boxes)), "still there": exact(live)},
        runs=runs or ((0, 0),),
    )


def _origin(stack: Sequence[tuple[str, int, str]]) -> tuple[str, str]:
    """Return the line and the function of the innermost call."""
    if not stack:
        return "", ""
    path, line, function = stack[0]
    return f"{shown_path(path)}:{line}", function


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
