"""What a picture of a timeline shows: rectangles merged where they are too small.

A picture has no zoom, so boxes that follow each other in one colour, and are each lower
than a pixel or so, become one rectangle. The bytes of each colour stay where they are.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memcfg.timeline._timeline_colours import KINDS, colours_of
from memcfg.timeline._timeline_text import peak_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.timeline._timeline_parts import Box
    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["Picture", "Rectangle", "kinds_with_time", "picture_of", "steps_of"]

_NEAR = 1.5  # a limit up to this multiple of the peak is in the picture
_PIXELS = 1.2  # lower boxes are merged


class Rectangle(NamedTuple):
    """A rectangle: seconds, bytes, its role, and the name of its only box."""

    begin: float
    end: float
    low: int
    high: int
    role: str
    name: str = ""
    again: bool = False


class Picture(NamedTuple):
    """A timeline on one clock, ready to be drawn."""

    times: tuple[float, ...]  # seconds at which events begin, and the end
    end: float  # seconds
    top: int  # bytes
    rectangles: list[Rectangle]
    colours: dict[str, str]  # by role; that with most bytes at the peak comes first
    at_peak: dict[str, int]  # bytes by role
    lanes: dict[str, list[tuple[float, float]]]  # by queue, in seconds
    arrows: list[tuple[Rectangle, Rectangle]]


def picture_of(timeline: TimelineValues, width: int, height: int) -> Picture:
    """Return what to draw on so many pixels."""
    boxes, events = timeline.boxes, timeline.events
    times = timeline.measured or timeline.planned
    if not times or times[-1] <= 0:  # nothing has a time: events are equally long
        times = tuple(map(float, range(len(events) + 1)))
    lanes: dict[str, list[tuple[float, float]]] = {}
    for copy in timeline.copies:
        measured = copy.measured if timeline.measured else None
        lanes.setdefault(copy.queue, []).append(measured or copy.planned)
    end = max([times[-1], *(end for lane in lanes.values() for _, end in lane)])
    end = end or 1.0
    top = max([*(box.offset + box.nbytes for box in boxes), timeline.peak_bytes, 1])
    if timeline.limit_bytes is not None and timeline.limit_bytes < _NEAR * top:
        top = max(top, timeline.limit_bytes)
    roles = list(dict.fromkeys(box.role for box in boxes))
    colours = dict(zip(roles, colours_of(roles), strict=True))
    peak = peak_event(timeline) if events else 0
    at_peak = dict.fromkeys(roles, 0)
    for box in boxes:
        if box.begin <= peak < box.end:
            at_peak[box.role] += box.nbytes
    order = sorted(roles, key=at_peak.__getitem__, reverse=True)
    return Picture(
        times=times,
        end=end,
        top=top,
        rectangles=_merged(boxes, times, end / width, top / height),
        colours={role: colours[role] for role in order},
        at_peak={role: at_peak[role] for role in order},
        lanes=lanes,
        arrows=[
            (
                _rectangle(boxes[each.source], times),
                _rectangle(boxes[each.target], times),
            )
            for each in timeline.arrows
        ],
    )


def kinds_with_time(timeline: TimelineValues, picture: Picture) -> list[str]:
    """Return the kinds of events that are seen in the lane, which takes some time."""
    spans = zip(timeline.events, pairwise(picture.times), strict=True)
    seen = {event.kind for event, (begin, end) in spans if begin < end}
    return [kind for kind in KINDS if kind in seen]


def steps_of(
    times: Sequence[float], values: Sequence[int], parts: int
) -> list[tuple[float, int]]:
    """Return the corners of a curve that is constant in each event.

    Of the events in each of so many parts of the time only the highest value stays.
    """
    corners: list[tuple[float, int]] = []
    size = (times[-1] / parts) or 1.0
    part = -1
    for number, value in enumerate(values):
        begin, end = times[number], times[number + 1]
        if int(begin / size) == part and end - begin < size:
            if value > corners[-1][1]:
                corners[-2] = corners[-2][0], value
                corners[-1] = end, value
            continue
        part = int(begin / size)
        corners += [(begin, value), (end, value)]
    return corners


def _rectangle(box: Box, times: Sequence[float]) -> Rectangle:
    begin, end = times[box.begin], times[box.end]
    again = box.origin == "recomputed"
    high = box.offset + box.nbytes
    return Rectangle(begin, end, box.offset, high, box.role, box.name, again)


def _merged(
    boxes: Sequence[Box], times: Sequence[float], wide: float, low: float
) -> list[Rectangle]:
    """Return rectangles; `wide` seconds and `low` bytes are a pixel.

    Small boxes with one role and, to a pixel, one time are merged if they touch.
    """
    result: list[Rectangle] = []
    small: dict[tuple[str, int, int], list[Rectangle]] = defaultdict(list)
    for box in boxes:
        each = _rectangle(box, times)
        if box.nbytes < _PIXELS * low or each.end - each.begin < wide / 2:
            first, last = int(each.begin / wide), int(each.end / wide)
            small[each.role, first, last].append(each)
        else:
            result.append(each)
    for several in small.values():
        several.sort(key=lambda each: each.low)
        merged = several[0]
        for each in several[1:]:
            if each.low <= merged.high + low / 2:
                begin, end = min(merged.begin, each.begin), max(merged.end, each.end)
                high = max(merged.high, each.high)
                merged = Rectangle(begin, end, merged.low, high, each.role)
            else:
                result.append(merged)
                merged = each
        result.append(merged)
    return result
