"""Boxes and arrows as SVG: ranks by the longest way from the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.nn.drawing._boxes import Boxes

__all__ = ["svg_of"]

_LETTER, _LINE, _PAD = 7.3, 17, 9  # pixels of 12-pixel letters, a line, a margin
_BETWEEN, _BESIDE = 34, 26  # pixels between ranks, and between boxes of a rank
_ROUNDS = 4  # of ordering ranks by the places of neighbours


@dataclass
class _Place:
    """Where a box is: the middle and the size, along the ranks and across."""

    along: float = 0.0
    across: float = 0.0
    length: float = 0.0
    breadth: float = 0.0


def _ranks(boxes: Boxes) -> list[list[int]]:
    """Return the boxes by the number of arrows on the longest way to them."""
    depth = [0] * len(boxes.boxes)
    for _ in boxes.boxes:  # a loop, as of a shared layer, ends after as many rounds
        changed = False
        for start, end in boxes.arrows:
            if depth[end] <= depth[start] < len(depth) - 1:
                depth[end], changed = depth[start] + 1, True
        if not changed:
            break
    ranks: dict[int, list[int]] = {}
    for box, each in enumerate(depth):
        ranks.setdefault(each, []).append(box)
    return [ranks[each] for each in sorted(ranks)]


def _order(ranks: list[list[int]], boxes: Boxes) -> None:
    """Order each rank by the mean place of the boxes that it is joined with."""
    for turn in range(_ROUNDS):
        place = {box: i - len(rank) / 2 for rank in ranks for i, box in enumerate(rank)}
        near: dict[int, list[float]] = {box: [] for box in place}
        for start, end in boxes.arrows:
            near[end].append(place[start])
            if turn % 2:
                near[start].append(place[end])
        for rank in ranks:
            rank.sort(
                key=lambda box: (
                    sum(near[box]) / len(near[box]) if near[box] else place[box]
                )
            )


def svg_of(boxes: Boxes, rankdir: str) -> str:
    """Return a picture as text of SVG, in the direction TB, BT, LR or RL."""
    sideways = rankdir in ("LR", "RL")
    places = []
    for box in boxes.boxes:
        wide = max(map(len, box.lines)) * _LETTER + 2 * _PAD
        high = float(len(box.lines) * _LINE + 2 * _PAD)
        if not sideways:
            wide, high = high, wide
        places.append(_Place(length=wide, breadth=high))
    ranks = _ranks(boxes)
    _order(ranks, boxes)
    breadths = [
        sum(places[box].breadth + _BESIDE for box in rank) - _BESIDE for rank in ranks
    ]
    breadth, along = max(breadths, default=0.0), float(_PAD)
    for rank, own in zip(ranks, breadths, strict=True):
        most = max(places[number].length for number in rank)
        across = _PAD + (breadth - own) / 2
        for number in rank:
            place = places[number]
            place.along = along + most / 2
            place.across = across + place.breadth / 2
            across += place.breadth + _BESIDE
        along += most + _BETWEEN
    if rankdir in ("BT", "RL"):
        for place in places:
            place.along = along - _BETWEEN + _PAD - place.along
    skips = _arrows(boxes, places, breadth + 2 * _PAD)
    size = along - _BETWEEN + _PAD, max([breadth + _PAD, *(each[1] for each in skips)])
    width, height = (size[0], size[1] + _PAD) if sideways else (size[1] + _PAD, size[0])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        '<defs><marker id="end" markerWidth="9" markerHeight="8" refX="8" refY="4" '
        'orient="auto"><path d="M0,0 L9,4 L0,8 z"/></marker></defs>',
        *(_curve(points, sideways) for points, _ in skips),
        *(
            _drawn(box.lines, place, sideways)
            for box, place in zip(boxes.boxes, places, strict=True)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrows(
    boxes: Boxes, places: list[_Place], side: float
) -> list[tuple[list[tuple[float, float]], float]]:
    """Return the four points of each arrow, and how far across it goes.

    One that would cross a box goes around all boxes.
    """
    result, lanes = [], 0
    for start, end in boxes.arrows:
        one, other = places[start], places[end]
        way = 1 if other.along > one.along else -1
        first = one.along + way * one.length / 2, one.across
        last = other.along - way * other.length / 2, other.across
        far = side
        if _is_crossed(places, first, last):
            lanes += 1
            far = side + 8.0 * lanes
            middle = [(first[0] + way * 20, far), (last[0] - way * 20, far)]
        else:
            half = (first[0] + last[0]) / 2
            middle = [(half, first[1]), (half, last[1])]
        result.append(([first, *middle, last], far - _PAD))
    return result


def _is_crossed(
    places: list[_Place], first: tuple[float, float], last: tuple[float, float]
) -> bool:
    """Return whether a box lies on the straight line between two points."""
    low, high = sorted((first[0], last[0]))
    for place in places:
        if low < place.along < high:
            part = (place.along - first[0]) / (last[0] - first[0])
            across = first[1] + part * (last[1] - first[1])
            if abs(across - place.across) < place.breadth / 2 + 4:
                return True
    return False


def _curve(points: list[tuple[float, float]], sideways: bool) -> str:
    (x0, y0), *rest = [each if sideways else each[::-1] for each in points]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in rest)
    return (
        f'<path d="M{x0:.1f},{y0:.1f} C{curve}" fill="none" stroke="black" '
        'marker-end="url(#end)"/>'
    )


def _drawn(lines: tuple[str, ...], place: _Place, sideways: bool) -> str:
    x, y = (place.along, place.across)[:: 1 if sideways else -1]
    width, height = (place.length, place.breadth)[:: 1 if sideways else -1]
    top = y - height / 2
    parts = [
        f'<rect x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="3" fill="white" stroke="black"/>'
    ]
    for number, line in enumerate(lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{x:.1f}" y="{top + _PAD + _LINE * (number + 0.75):.1f}" '
            f'text-anchor="middle"{weight}>{escape(line)}</text>'
        )
    return "".join(parts)
