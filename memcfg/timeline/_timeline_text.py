"""Timelines as text: a map of addresses over time, and the largest boxes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from memcfg._terminal import paragraph, shorten, width, writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.timeline._timeline_parts import Box
    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["peak_event", "text_of"]

_ROWS = 16  # of the map
_LEFT = 11  # columns of a row's size
_LETTERS = {
    "parameter": "P",
    "optimizer_state": "O",
    "packed": "K",
    "activation": "A",
    "activation_gradient": "G",
    "gradient": "W",
    "input": "I",
    "output": "R",
    "scratch": "S",
    "encoded": "E",
}
_LARGEST = 5  # boxes that are listed
_AGAIN = "small letters: recomputed"


def text_of(timeline: TimelineValues) -> str:
    """Return a timeline as text of at most 80 columns."""
    head = [
        shorten(timeline.title, width()),
        *(
            paragraph(f"  {label:<17}", value.split())
            for label, value in timeline.numbers().items()
        ),
    ]
    if not timeline.events or not timeline.boxes:
        return writable("\n".join([*head, "  nothing was allocated"]))
    letters = _letters_of(timeline)
    at = peak_event(timeline)
    event = timeline.events[at]
    there = [box for box in timeline.boxes if box.begin <= at < box.end]
    there.sort(key=lambda box: -box.nbytes)
    when = "from the allocation of" if timeline.is_recorded else "during"
    lines = [
        *head,
        "",
        *_map(timeline, letters),
        paragraph("  ", _legend(timeline, letters)),
        "",
        paragraph(
            "  ",
            f"{format_bytes(event.live_bytes)} in use at most, {when} "
            f"{shorten(event.name, 40)!r}; the largest:".split(),
        ),
        *(
            f"    {format_bytes(box.nbytes):>10}  {shorten(box.name, width() - 40)}, "
            f"{_spoken(timeline, box.role)}"
            for box in there[:_LARGEST]
        ),
    ]
    return writable("\n".join(line.rstrip() for line in lines))


def _legend(timeline: TimelineValues, letters: dict[str, str]) -> list[str]:
    """Return the words that say what each letter is, which a line does not split."""
    said = [f"{letter} {_spoken(timeline, role)}" for role, letter in letters.items()]
    if any(map(_is_again, timeline.boxes)):
        said.append(_AGAIN)
    return [f"{each}," for each in said[:-1]] + said[-1:]


def _spoken(timeline: TimelineValues, role: str) -> str:
    """Return a role as words; the tag of a resource stays as it is."""
    return role if timeline.is_recorded else role.replace("_", " ")


def _is_again(box: Box) -> bool:
    return box.origin == "recomputed"


def peak_event(timeline: TimelineValues) -> int:
    """Return the first event with the most bytes in use."""
    live = [event.live_bytes for event in timeline.events]
    return live.index(max(live))


def _letters_of(timeline: TimelineValues) -> dict[str, str]:
    """Return a letter for each role; tags of a resource have the next free ones."""
    roles = list(dict.fromkeys(box.role for box in timeline.boxes))
    free = iter("abcdefghijklmnopqrstuvwxyz")
    return {role: _LETTERS.get(role) or next(free, "#") for role in roles}


def _map(timeline: TimelineValues, letters: dict[str, str]) -> list[str]:
    """Return rows of addresses, the highest first; columns are of equal time."""
    columns = width() - _LEFT - 3
    limit = timeline.limit_bytes or 0
    top = max(max(b.offset + b.nbytes for b in timeline.boxes), timeline.peak_bytes, 1)
    if limit < 1.3 * top:
        top = max(top, limit)
    times = timeline.measured or timeline.planned
    end = times[-1]
    if end <= 0:  # no times: all events take as long
        times = tuple(map(float, range(len(timeline.events) + 1)))
        end = times[-1]
    cells = [[" "] * columns for _ in range(_ROWS)]
    for column in range(columns):
        event = bisect_right(times, end * (column + 0.5) / columns) - 1
        event = min(event, len(timeline.events) - 1)
        there = [box for box in timeline.boxes if box.begin <= event < box.end]
        _fill(cells, column, there, top, letters)
    limit_row = _ROWS - 1 - min(int(limit * _ROWS / top), _ROWS - 1)
    rows = []
    for row, letters_of_row in enumerate(cells):
        size = format_bytes(round(top * (_ROWS - row) / _ROWS))
        mark = "│"
        if limit and limit <= top and row == limit_row:
            letters_of_row = [each if each != " " else "┄" for each in letters_of_row]
        rows.append(f"{size:>{_LEFT}} {mark}{''.join(letters_of_row)}")
    what = "measured" if timeline.measured else "planned"
    what = "recorded" if timeline.is_recorded else what
    rows.append(f"{'0 B':>{_LEFT}} └{'─' * columns}")
    rows.append(f"{'':>{_LEFT}}  {what + ' time':>{columns}}")
    return rows


def _fill(
    cells: list[list[str]],
    column: int,
    there: Sequence[Box],
    top: int,
    letters: dict[str, str],
) -> None:
    """Write the letter of what has most of each cell of a column.

    It is that of the role, and small for a tensor that was recomputed.
    """
    size = top / _ROWS
    shares: list[dict[str, float]] = [{} for _ in range(_ROWS)]
    for box in there:
        first, last = box.offset / size, (box.offset + box.nbytes) / size
        letter = letters[box.role].lower() if _is_again(box) else letters[box.role]
        for row in range(int(first), min(int(last), _ROWS - 1) + 1):
            part = min(last, row + 1) - max(first, row)
            shares[row][letter] = shares[row].get(letter, 0.0) + part
    for row, share in enumerate(shares):
        if share and sum(share.values()) > 0.25:
            cells[_ROWS - 1 - row][column] = max(share, key=share.__getitem__)
