"""Charts as SVG, in the colours of the page that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._html import COLOURS, as_html
from memcfg.evaluation.curves._chart import Bars, Cells, Chart, Line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["svg_of"]

_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 40, 18, 52  # pixels around the axes
_WIDTH, _HEIGHT = 400, 300  # pixels of the axes
_TICKS = 5  # spaces between ticks
_LETTER = 6.4  # pixels of a letter of 11 pixels, on average
_FONT = 'font-family="Helvetica, Arial, sans-serif"'
_CELL, _SMALL = 46, 12  # pixels of a cell with a text, and of one without
_TEXTS, _CELLS = 20, 200  # classes up to which cells have texts, and are drawn
_STYLE = (
    "<style>.memcfg-figure{color:#1b1f24}@media (prefers-color-scheme:dark)"
    "{.memcfg-figure{color:#e6e8eb}}</style>"
)


def svg_of(chart: Chart, *, alone: bool) -> str:
    """Return a chart as SVG; `alone` is a file, which has colours of its own."""
    first = chart.content[0]
    if isinstance(first, Cells):
        width, height, shapes = _matrix(chart, first)
    else:
        width, height, shapes = _axes(chart)
    if alone:
        head = 'xmlns="http://www.w3.org/2000/svg" class="memcfg-figure" '
    else:
        head = 'style="max-width:100%;height:auto;color:inherit" '
    return (
        f'<svg {head}width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{as_html(chart.title)}" {_FONT} font-size="11" '
        f'fill="currentColor">{_STYLE if alone else ""}{"".join(shapes)}</svg>\n'
    )


def _text(
    x: float, y: float, words: str, anchor: str = "middle", more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>'
        f"{as_html(words)}</text>"
    )


def _upright(x: float, y: float, words: str) -> str:
    return _text(x, y, words, more=f'transform="rotate(-90 {x:.1f} {y:.1f})"')


def _line(x0: float, y0: float, x1: float, y1: float, opacity: float) -> str:
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
        f'stroke="currentColor" stroke-opacity="{opacity}"/>'
    )


def _axes(chart: Chart) -> tuple[float, float, list[str]]:
    """Draw axes with a grid, and lines and bars in it."""
    (left, right), (low, high) = chart.x_range, chart.y_range
    x_size, y_size = (right - left) or 1.0, (high - low) or 1.0

    def place(x: Any, y: Any) -> tuple[float, float]:
        return (
            _LEFT + _WIDTH * (float(x) - left) / x_size,
            _TOP + _HEIGHT * (1 - (float(y) - low) / y_size),
        )

    base, end = _TOP + _HEIGHT, _LEFT + _WIDTH
    shapes = [
        _text(_LEFT + _WIDTH / 2, 20, chart.title, more='font-size="13"'),
        _text(_LEFT + _WIDTH / 2, base + 38, chart.x_label),
        _upright(16, _TOP + _HEIGHT / 2, chart.y_label),
    ]
    for i in range(_TICKS + 1):
        x, y = left + x_size * i / _TICKS, low + y_size * i / _TICKS
        at_x, at_y = place(x, y)
        shapes += [
            _line(at_x, _TOP, at_x, base, 0.12 if i else 0.6),
            _line(_LEFT, at_y, end, at_y, 0.12 if i else 0.6),
            _text(at_x, base + 17, f"{x:.3g}"),
            _text(_LEFT - 8, at_y + 4, f"{y:.4g}", "end"),
        ]
    number = 0
    legend: list[tuple[str, str]] = []
    for each in chart.content:
        if isinstance(each, Line) and each.dashed:
            colour = "currentColor"
        else:
            colour, number = COLOURS[number % len(COLOURS)], number + 1
        shapes += _drawn(each, colour, place, base)
        if each.label:
            legend.append((each.label, colour))
    return end + _RIGHT, base + _BOTTOM, [*shapes, *_legend(legend)]


def _drawn(each: Any, colour: str, place: Any, base: float) -> Iterator[str]:
    """Draw a line or bars."""
    if isinstance(each, Bars):
        edges = list(each.edges)
        for x0, x1, height in zip(edges, edges[1:], each.heights, strict=False):
            (begin, top), (end, _) = place(x0, height), place(x1, height)
            words = f"{x0:.3g} to {x1:.3g}: {height:g}"
            yield (
                f'<rect x="{begin + 0.5:.1f}" y="{top:.1f}" '
                f'width="{max(end - begin - 1, 0.5):.1f}" height="{base - top:.1f}" '
                f'fill="{colour}"><title>{words}</title></rect>'
            )
        return
    points = [place(x, y) for x, y in zip(each.x, each.y, strict=True)]
    if not points:
        return
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    if each.filled:
        (first, _), (last, _) = points[0], points[-1]
        yield (
            f'<polygon points="{first:.1f},{base} {shown} {last:.1f},{base}" '
            f'fill="{colour}" fill-opacity="0.13"/>'
        )
    how = (
        'stroke-dasharray="4 4" stroke-opacity="0.55"'
        if each.dashed
        else 'stroke-width="2" stroke-linejoin="round"'
    )
    yield f'<polyline points="{shown}" fill="none" stroke="{colour}" {how}/>'
    for x, y in points if each.dots else ():
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>'


def _legend(entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Name the lines, in the lower right corner of the axes."""
    wide = max((len(words) for words, _ in entries), default=0) * _LETTER + 26
    x, y = _LEFT + _WIDTH - wide - 8, _TOP + _HEIGHT - 15.0 * len(entries) - 2
    for words, colour in entries:
        faint = ' fill-opacity="0.55"' if colour == "currentColor" else ""
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="14" height="4" fill="{colour}"'
            f"{faint}/>"
        )
        yield _text(x + 20, y + 6, words, "start")
        y += 15


def _matrix(chart: Chart, cells: Cells) -> tuple[float, float, list[str]]:
    """Draw a matrix with the names of its rows and columns."""
    count = len(cells.rows)
    if count > _CELLS:
        raise ValueError(
            f"a matrix of {count} classes is too large to draw: at most {_CELLS}"
        )
    named = count <= _TEXTS
    names = [each if len(each) <= 16 else f"{each[:15]}…" for each in cells.rows]
    longest = max(map(len, names)) * _LETTER if named else 0
    long_text = max((len(t) for row in cells.texts for t in row), default=0)
    size = max(_CELL, long_text * _LETTER + 10) if named else _SMALL
    tilted = named and longest > size - 6
    above = (longest * 0.72 + 14 if tilted else 16) if named else 0
    left, top = 34 + longest, 52 + above
    end, base = left + size * count, top + size * count
    shapes = [
        _text(left + size * count / 2, 20, chart.title, more='font-size="13"'),
        _text(left + size * count / 2, 40, chart.x_label),
        _upright(16, top + size * count / 2, chart.y_label),
    ]
    for i in range(count if named else 0):
        middle = left + size * (i + 0.5)
        if tilted:
            turn = f'transform="rotate(-45 {middle:.1f} {top - 6:.1f})"'
            shapes.append(_text(middle, top - 6, names[i], "start", turn))
        else:
            shapes.append(_text(middle, top - 7, names[i]))
        shapes.append(_text(left - 7, top + size * (i + 0.5) + 4, names[i], "end"))
    for i in range(count):
        for j in range(count):
            x, y, shade = left + size * j, top + size * i, float(cells.shades[i][j])
            words = f"{cells.rows[i]} → {cells.columns[j]}: {cells.texts[i][j]}"
            shapes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" '
                f'height="{size:.1f}" fill="{COLOURS[0]}" '
                f'fill-opacity="{0.04 + 0.76 * shade:.3f}">'
                f"<title>{as_html(words)}</title></rect>"
            )
            if named:
                shapes.append(_text(x + size / 2, y + size / 2 + 4, cells.texts[i][j]))
    frame = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{end - left:.1f}" '
        f'height="{base - top:.1f}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.4"/>'
    )
    beyond = longest * 0.72 - size / 2 if tilted else 0  # of the last name
    return max(end + max(beyond, _RIGHT), 240), base + 16, [*shapes, frame]
