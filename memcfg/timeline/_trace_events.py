"""Timelines as trace events, which Perfetto and Chrome open.

Source of the format: "Trace Event Format", Google, 2016. Times are microseconds.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.timeline._timeline_parts import Box
    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["trace_events_of"]

_STEP, _TENSORS = 1, 2  # process numbers
_MICRO = 1e6  # microseconds of a second


def trace_events_of(timeline: TimelineValues) -> str:
    """Return JSON: ops and copies, bytes in use by role, and tensors over time."""
    times = timeline.measured or timeline.planned
    stamps = [round(each * _MICRO, 3) for each in times]
    events = [
        _named(_STEP, "process_name", "step"),
        _named(_STEP, "thread_name", "compute", 1),
        *_ops(timeline, stamps),
        *_copies(timeline),
        *_counters(timeline, stamps),
        _named(_TENSORS, "process_name", "tensors"),
        *_tensors(timeline, stamps),
    ]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": timeline.title, **timeline.numbers()},
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _named(process: int, what: str, name: str, thread: int = 0) -> dict[str, Any]:
    args = {"name": name}
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": args}


def _span(
    process: int, thread: int, name: str, category: str, begin: float, end: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "cat": category,
        "ts": begin,
        "dur": round(max(end - begin, 0.0), 3),
    }


def _ops(timeline: TimelineValues, stamps: list[float]) -> Iterator[dict[str, Any]]:
    for number, event in enumerate(timeline.events):
        name = f"wait for {event.name}" if event.kind == "wait" else event.name
        begin, end = stamps[number : number + 2]
        made = _span(_STEP, 1, name, event.kind, begin, end)
        args: dict[str, Any] = {"live_bytes": event.live_bytes}
        args |= {"layer": event.layer} if event.layer else {}
        args |= {"line": event.line} if event.line else {}
        args |= {"recomputed": True} if event.again else {}
        yield {**made, "args": args}


def _copies(timeline: TimelineValues) -> Iterator[dict[str, Any]]:
    """Yield a thread a lane, and flows from copies out to copies in."""
    threads: dict[str, int] = {}
    begins = []
    for copy in timeline.copies:
        if copy.queue not in threads:
            threads[copy.queue] = thread = 2 + len(threads)
            yield _named(_STEP, "thread_name", copy.queue, thread)
        measured = copy.measured if timeline.measured else None
        begin, end = (round(t * _MICRO, 3) for t in measured or copy.planned)
        begins.append(begin)
        made = _span(_STEP, threads[copy.queue], copy.name, "copy", begin, end)
        yield {**made, "args": {"bytes": copy.nbytes}}
    for number, arrow in enumerate(timeline.arrows):
        if len(arrow.copies) < 2:
            continue
        for phase, index in zip("sf", arrow.copies, strict=True):
            flow = {
                "ph": phase,
                "id": number,
                "pid": _STEP,
                "tid": threads[timeline.copies[index].queue],
                "name": "swap",
                "cat": "swap",
                "ts": begins[index],
            }
            yield flow if phase == "s" else {**flow, "bp": "e"}


def _counters(
    timeline: TimelineValues, stamps: list[float]
) -> Iterator[dict[str, Any]]:
    changes: dict[int, dict[str, int]] = {}
    for box in timeline.boxes:
        for at, sign in ((box.begin, 1), (box.end, -1)):
            roles = changes.setdefault(at, {})
            roles[box.role] = roles.get(box.role, 0) + sign * box.nbytes
    now = dict.fromkeys((box.role for box in timeline.boxes), 0)
    for at in sorted(changes):
        for role, change in changes[at].items():
            now[role] += change
        yield {
            "ph": "C",
            "pid": _STEP,
            "name": "bytes in use",
            "ts": stamps[at],
            "args": dict(now),
        }


def _tensors(timeline: TimelineValues, stamps: list[float]) -> Iterator[dict[str, Any]]:
    """Yield tensors as spans; those of a role share rows where they do not overlap."""
    rows: dict[str, list[tuple[int, int]]] = {}  # role -> heap of (free from, row)
    threads: dict[tuple[str, int], int] = {}
    for box in sorted(timeline.boxes, key=lambda box: (box.role, box.begin)):
        row = _row(rows.setdefault(box.role, []), box)
        if (box.role, row) not in threads:
            threads[box.role, row] = thread = len(threads) + 1
            yield _named(_TENSORS, "thread_name", f"{box.role} {row}", thread)
        begin, end = stamps[box.begin], stamps[box.end]
        thread = threads[box.role, row]
        made = _span(_TENSORS, thread, box.name, box.role, begin, end)
        args = {"bytes": box.nbytes, "offset": box.offset}
        yield {**made, "args": {**args, "op": box.op, "line": box.line}}


def _row(rows: list[tuple[int, int]], box: Box) -> int:
    """Return a row that is free when a box begins, and take it."""
    if rows and rows[0][0] <= box.begin:
        row = rows[0][1]
        heapq.heapreplace(rows, (box.end, row))
    else:
        row = len(rows)
        heapq.heappush(rows, (box.end, row))
    return row
