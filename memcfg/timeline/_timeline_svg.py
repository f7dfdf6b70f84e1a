"""Timelines as SVG, in the colours of the page that shows them."""

from __future__ import annotations

from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING

from memcfg._html import as_html
from memcfg._terminal import shorten
from memcfg.timeline._timeline_colours import KINDS, colour_of_queue
from memcfg.timeline._timeline_picture import kinds_with_time, picture_of, steps_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.timeline._timeline_picture import Picture, Rectangle
    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["round_steps", "svg_of"]

_LEFT, _RIGHT = 84, 14  # pixels beside the picture
_WIDTH, _HEIGHT = 900, 330  # of the addresses
_LIVE, _LANE, _GAP, _AXIS = 72, 16, 24, 24
_LETTER = 6.3  # pixels of a letter of 11 pixels, on average
_NAMED = 13  # pixels of height from which a box shows its name
_LEGIBLE = 9  # letters that a shortened name has at least
_TOLD = 3  # pixels from which a box has a title
_THIN = 0.4  # pixels of the thinnest bar
_ARROWS = 80  # the largest are drawn
_STYLE = (
    "<style>.memcfg-timeline{color:#1b1f24;background:#fff}"
    "@media (prefers-color-scheme:dark)"
    "{.memcfg-timeline{color:#e6e8eb;background:#14171b}}"
    "@media print{.memcfg-timeline{color:#000;background:#fff}}</style>"
)
_STRIPES = "memcfg-stripes"
_PATTERN = (
    f'<defs><pattern id="{_STRIPES}" width="7" height="7" '
    'patternUnits="userSpaceOnUse"><path d="M-1,8L8,-1M-1,1L1,-1M6,8L8,6" '
    'stroke="#fff" stroke-opacity=".55" stroke-width="1.6"/></pattern></defs>'
)
_LIMIT, _MEASURED = "#d64545", "#d9822b"
_ON_WHITE = {"currentColor": "#1b1f24", _LIMIT: "#b71c1c", _MEASURED: "#9a4d00"}


def svg_of(timeline: TimelineValues, *, alone: bool) -> str:
    """Return the picture; `alone` is a file, with numbers and colours of its own."""
    return _Svg(timeline, alone=alone).document()


def round_steps(size: float, count: float, *, binary: bool) -> list[float]:
    """Return the round numbers from 0 to `size`, about so many."""
    if binary:
        step = 2.0 ** max(ceil(log2(size / count)), 0)
    else:
        power = 10.0 ** floor(log10(size / count))
        part = size / count / power
        step = power * next(each for each in (1, 2, 5, 10) if part <= each)
    return [number * step for number in range(int(size / step) + 1)]


class _Svg:
    """The picture of one timeline."""

    def __init__(self, timeline: TimelineValues, *, alone: bool) -> None:
        self.timeline = timeline
        self.alone = alone
        self.picture: Picture = picture_of(timeline, _WIDTH, _HEIGHT)
        self.numbers = _wrapped(
            [f"{label}: {value}" for label, value in timeline.numbers().items()],
            separator=" · ",
        )
        self.keys = self._legend()
        self.head = 30 + 16 * len(self.numbers) if alone else 4
        self.top = self.head + 17 * (1 + self.keys[-1][1]) + 8
        self.live = self.top + _HEIGHT + _GAP
        self.lanes = self.live + _LIVE + _GAP
        self.bottom = self.lanes + _LANE * (1 + len(self.picture.lanes))

    def document(self) -> str:
        """Return the picture as an element."""
        width, height = _LEFT + _WIDTH + _RIGHT, self.bottom + _AXIS
        head = 'style="max-width:100%;height:auto;color:inherit" '
        if self.alone:
            head = 'xmlns="http://www.w3.org/2000/svg" class="memcfg-timeline" '
        shapes = "".join(self._shapes())
        return (
            f'<svg {head}width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{as_html(self.timeline.title)}" font-size="11" '
            'font-family="Helvetica, Arial, sans-serif" fill="currentColor">'
            f"{_STYLE if self.alone else ''}{_PATTERN}{shapes}</svg>\n"
        )

    def _shapes(self) -> Iterator[str]:
        if self.alone:
            yield _text(_LEFT, 20, self.timeline.title, more='font-size="14"')
        for row, words in enumerate(self.numbers if self.alone else ()):
            yield _text(_LEFT, 40 + 16 * row, words, more='fill-opacity=".75"')
        for left, row, words, colour in self.keys:
            y = self.head + 6 + 17 * row
            yield f'<rect x="{left}" y="{y}" width="10" height="10" fill="{colour}"/>'
            yield _text(left + 14, y + 9, words)
        yield from self._grid()
        for each in self.picture.rectangles:
            yield self._box(each)
        yield from self._arrows()
        for each in self.picture.rectangles:
            yield self._name(each)
        yield from self._levels()
        yield from self._curve()
        yield from self._queues()

    def _legend(self) -> list[tuple[int, int, str, str]]:
        """Return (x, row, words, colour) of each role."""
        made, left, row = [], _LEFT, 0
        for role, colour in list(self.picture.colours.items())[:14]:
            size = format_bytes(self.picture.at_peak[role])
            words = f"{shorten(role.replace('_', ' '), 30)} {size}"
            wide = 30 + round(_LETTER * len(words))
            if left + wide > _LEFT + _WIDTH:
                left, row = _LEFT, row + 1
            made.append((left, row, words, colour))
            left += wide
        if any(each.again for each in self.picture.rectangles):
            made.append((left, row, "striped: recomputed", "none"))
        return made or [(_LEFT, 0, "nothing was allocated", "none")]

    def _x(self, seconds: float) -> float:
        return _LEFT + _WIDTH * seconds / self.picture.end

    def _y(self, nbytes: float) -> float:
        return self.top + _HEIGHT * (1 - nbytes / self.picture.top)

    def _grid(self) -> Iterator[str]:
        for nbytes in round_steps(self.picture.top, 8, binary=True):
            y = self._y(nbytes)
            yield _line(_LEFT, y, _LEFT + _WIDTH, y, 'stroke-opacity=".13"')
            yield _text(_LEFT - 7, y + 4, format_bytes(int(nbytes)), "end")
        seconds = self.picture.end < 1
        for time in round_steps(self.picture.end, 9, binary=False):
            x = self._x(time)
            yield _line(x, self.top, x, self.bottom, 'stroke-opacity=".13"')
            words = f"{time * 1e3:.4g} ms" if seconds else f"{time:.4g} s"
            anchor = "end" if x > _LEFT + _WIDTH - 20 else "middle"
            yield _text(x, self.bottom + 15, words, anchor)
        yield _text(8, self.bottom + 15, self._clock())

    def _clock(self) -> str:
        if self.timeline.measured or self.timeline.is_recorded:
            return "measured"
        return "planned" if self.timeline.planned[-1:] > (0.0,) else "events"

    def _place(self, box: Rectangle) -> tuple[float, float, float, float]:
        """Return left, top, width and height in pixels."""
        x, y = self._x(box.begin), self._y(box.high)
        return x, y, max(self._x(box.end) - x, 0.5), max(self._y(box.low) - y, 0.5)

    def _box(self, box: Rectangle) -> str:
        x, y, wide, high = self._place(box)
        place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        look = f'fill="{self.picture.colours[box.role]}"'
        stripes = f'<rect {place} fill="url(#{_STRIPES})"/>' if box.again else ""
        if wide > 3 and high > 3:
            look += ' stroke="#fff" stroke-width=".5"'
        if not box.name or wide < _TOLD or high < _TOLD:
            return f"<rect {place} {look}/>{stripes}"
        size = format_bytes(box.high - box.low)
        again = ", recomputed" if box.again else ""
        title = as_html(f"{box.name}: {size}, {box.role}{again}")
        stripes = stripes.replace("/>", ' pointer-events="none"/>')
        return f"<rect {place} {look}><title>{title}</title></rect>{stripes}"

    def _name(self, box: Rectangle) -> str:
        """Return the name in a box, over arrows and stripes on a plate."""
        x, y, wide, high = self._place(box)
        name = shorten(box.name, int((wide - 8) / _LETTER))
        if not name or high < _NAMED or (len(name) < _LEGIBLE and name != box.name):
            return ""
        middle = y + high / 2
        plate = (
            f'<rect x="{x + 2:.1f}" y="{middle - 6:.1f}" height="12" '
            f'width="{min(_LETTER * len(name) + 4, wide - 4):.1f}" '
            f'fill="{self.picture.colours[box.role]}" pointer-events="none"/>'
        )
        look = 'fill="#fff" pointer-events="none"'
        return plate + _text(x + 4, middle + 4, name, more=look)

    def _arrows(self) -> Iterator[str]:
        arrows = sorted(
            self.picture.arrows, key=lambda pair: pair[1].low - pair[1].high
        )
        for source, target in arrows[:_ARROWS]:
            x0, y0 = self._x(source.end), self._y((source.low + source.high) / 2)
            x1, y1 = self._x(target.begin), self._y((target.low + target.high) / 2)
            high = self._y(target.low) - self._y(target.high)
            if x1 - x0 < 4 or high < _TOLD:
                continue
            bend = max(0.4 * (x1 - x0), 8)
            path = (
                f"M{x0:.1f},{y0:.1f}C{x0 + bend:.1f},{y0:.1f} "
                f"{x1 - bend:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
                f"m-5,-3l5,3l-5,3"
            )
            yield (
                f'<path d="{path}" fill="none" stroke="currentColor" '
                'stroke-opacity=".45"/>'
            )

    def _levels(self) -> Iterator[str]:
        """Draw the limit and the peaks, and then their names, below the lines."""
        timeline = self.timeline
        peak, measured = timeline.peak_bytes, timeline.measured_peak_bytes
        what = "peak, predicted and measured" if measured == peak else "predicted peak"
        what = "most bytes in use" if timeline.is_recorded else what
        levels = [(peak, what, "currentColor", "2 3")]
        if measured not in (None, peak):
            assert measured is not None
            levels.append((measured, "measured peak", _MEASURED, "2 3"))
        limit = timeline.limit_bytes
        if limit is not None:
            levels.append((limit, "limit", _LIMIT, "7 4"))
        levels.sort(reverse=True)
        for nbytes, _, colour, dash in levels:
            if nbytes <= self.picture.top:
                y = self._y(nbytes)
                look = f'stroke="{colour}" stroke-dasharray="{dash}"'
                yield _line(_LEFT, y, _LEFT + _WIDTH, y, look)
        used: list[float] = []
        for nbytes, words, colour, _ in levels:
            inside = nbytes <= self.picture.top
            at = self._y(min(nbytes, self.picture.top)) + 13
            while any(abs(other - at) < 15 for other in used):
                at += 15
            used.append(at)
            words = f"{words} {format_bytes(nbytes)}{'' if inside else ' (above)'}"
            wide = _LETTER * len(words) + 8
            right = _LEFT + _WIDTH - 4
            yield (
                f'<rect x="{right - wide:.1f}" y="{at - 11:.1f}" width="{wide:.1f}" '
                'height="14" fill="#fff" fill-opacity=".9" rx="3"/>'
            )
            shown = _ON_WHITE.get(colour, colour)
            yield _text(right - 4, at, words, "end", f'fill="{shown}"')

    def _curve(self) -> Iterator[str]:
        """Draw the bytes in use, planned and measured."""
        timeline, base = self.timeline, self.live + _LIVE
        top = max(self.picture.top, 1)
        curves = [([event.live_bytes for event in timeline.events], "#4b8bd6")]
        if timeline.measured_bytes:
            curves.append(([*timeline.measured_bytes], _MEASURED))
        yield _text(_LEFT, self.live - 5, "bytes in use", more='fill-opacity=".75"')
        for number, (values, colour) in enumerate(curves):
            corners = steps_of(self.picture.times, values, _WIDTH)
            points = " ".join(
                f"{self._x(x):.1f},{base - _LIVE * y / top:.1f}" for x, y in corners
            )
            if not number and corners:
                first, last = self._x(corners[0][0]), self._x(corners[-1][0])
                yield (
                    f'<polygon points="{first:.1f},{base} {points} {last:.1f},{base}" '
                    f'fill="{colour}" fill-opacity=".35"/>'
                )
            yield (
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                'stroke-width="1.2"/>'
            )
        if timeline.limit_bytes is not None and timeline.limit_bytes <= top:
            y = base - _LIVE * timeline.limit_bytes / top
            yield _line(
                _LEFT, y, _LEFT + _WIDTH, y, f'stroke="{_LIMIT}" stroke-dasharray="7 4"'
            )
        yield _line(_LEFT, base, _LEFT + _WIDTH, base, 'stroke-opacity=".4"')

    def _queues(self) -> Iterator[str]:
        """Draw the ops by phase, and a lane a queue."""
        words = "events" if self.timeline.is_recorded else "compute"
        yield _text(_LEFT - 7, self.lanes + 12, words, "end")
        kinds = kinds_with_time(self.timeline, self.picture)
        right = _LEFT + _WIDTH - sum(_LETTER * len(kind) + 26 for kind in kinds)
        for kind in kinds:
            y = self.lanes - 13
            place = f'x="{right:.1f}" y="{y}" width="9" height="9"'
            yield f'<rect {place} fill="{KINDS[kind]}"/>'
            yield _text(right + 13, y + 9, kind)
            right += _LETTER * len(kind) + 26
        events, times = self.timeline.events, self.picture.times
        bars: list[tuple[float, float, str, bool]] = []
        begin = 0
        for number in range(1, len(events) + 1):
            one, other = events[begin], events[number] if number < len(events) else None
            if (
                other is not None
                and one.kind == other.kind
                and one.again == other.again
            ):
                continue
            bars.append((times[begin], times[number], KINDS[one.kind], one.again))
            begin = number
        yield from self._row(bars, 0)
        for row, (queue, spans) in enumerate(self.picture.lanes.items(), 1):
            y = self.lanes + _LANE * row + 12
            yield _text(_LEFT - 7, y, shorten(queue, 12), "end")
            colour = colour_of_queue(queue)
            yield from self._row([(*span, colour, False) for span in spans], row)

    def _row(
        self, bars: Sequence[tuple[float, float, str, bool]], row: int
    ) -> Iterator[str]:
        """Draw a row of bars; of those in one part of a pixel, the first."""
        shown = -1.0
        for begin, end, colour, again in bars:
            x = self._x(begin)
            wide = max(self._x(end) - x, _THIN)
            if wide <= _THIN and x < shown + _THIN:
                continue
            shown = x
            place = (
                f'x="{x:.1f}" y="{self.lanes + _LANE * row + 2}" '
                f'width="{wide:.1f}" height="{_LANE - 4}"'
            )
            yield f'<rect {place} fill="{colour}"/>'
            if again:
                yield f'<rect {place} fill="url(#{_STRIPES})"/>'


def _wrapped(pieces: list[str], separator: str) -> list[str]:
    """Join pieces to lines that are as wide as the picture."""
    lines: list[str] = []
    for piece in pieces:
        longer = f"{lines[-1]}{separator}{piece}" if lines else piece
        if lines and len(longer) * _LETTER < _WIDTH:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


def _text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {at} text-anchor="{anchor}" {more}>{as_html(words, 160)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, look: str) -> str:
    stroke = "" if "stroke=" in look else 'stroke="currentColor" '
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
        f"{stroke}{look}/>"
    )
