"""Reports for notebooks: HTML without scripts and files, in the colours of the page.

A report is a title and sections of rows; its text form is made from the same rows. All
text is escaped and shortened, so that the size of a page is bounded.
"""

from __future__ import annotations

from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._terminal import printable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LETTERS, _LABEL = 120, 48  # letters of a text, and of one on a single line
_ROWS = 40  # rows of a section
_COLUMNS = 10  # columns of a table
_WIDTH, _HEIGHT = 560, 110  # size of a picture, in its own units
# Medium lightness, visible on white and on black.
COLOURS = ("#4b8bd6", "#d9822b", "#3fa55b", "#b565c9")
_FONT = "font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;color:inherit"
_PLAIN = "background:none;border:0;padding:1px 12px 1px 0;vertical-align:top"
_WORDS = f"{_PLAIN};text-align:left"
_NAME = f"{_WORDS};white-space:nowrap"
_NUMBER = f"{_PLAIN};text-align:right;white-space:nowrap"


class Row(NamedTuple):
    """A row of a report."""

    label: str
    value: str
    words: tuple[str, ...] = ()
    share: float | None = None  # the length of its bar, from 0 to 1


class Section(NamedTuple):
    """Rows below a heading, which may be empty."""

    heading: str
    rows: Sequence[Row]


def as_html(text: str, letters: int = _LETTERS) -> str:
    """Return a text as HTML, shortened and escaped."""
    shown = printable(text)
    if len(shown) > letters:
        half = letters // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    return escape(shown)


def report(
    title: str,
    sections: Iterable[Section],
    picture: str = "",
    before: Iterable[str] = (),
) -> str:
    """Return a report; the picture is at its end, and other lines before its title."""
    parts = [f"<div>{as_html(line)}</div>" for line in before]
    parts.append(f"<strong>{as_html(title)}</strong>")
    for heading, rows in sections:
        parts.append(_heading(heading))
        made = [_row(row) for row in rows[:_ROWS]]
        if len(rows) > _ROWS:
            made.append(_row(Row(f"… {len(rows) - _ROWS} more", "")))
        parts.append(_table(made))
    return _block([*parts, picture])


def report_of_fields(title: str, fields: Mapping[str, Any]) -> str:
    """Return a report with a row a field; those whose name ends in bytes are sizes."""
    return report(title, [Section("", [_field(*each) for each in fields.items()])])


def report_of_owners(
    title: str, fields: Mapping[str, Any], owners: Mapping[str, int]
) -> str:
    """Return a report of fields, and below them of the bytes that each owner holds."""
    most = max(owners.values(), default=0) or 1
    held = [
        Row(name, format_bytes(nbytes), share=nbytes / most)
        for name, nbytes in sorted(owners.items(), key=lambda each: -each[1])
    ]
    rows = [_field(*each) for each in fields.items()]
    sections = [Section("", rows), Section("held by", held)]
    return report(title, sections if held else sections[:1])


def _field(name: str, value: Any) -> Row:
    is_size = name.endswith(("bytes", "size", "offset")) and isinstance(value, int)
    shown = format_bytes(value) if is_size else value
    return Row(name, f"{shown:.4g}" if isinstance(shown, float) else str(shown))


def report_of_text(text: str) -> str:
    """Return a report whose text form begins with its title, in lines as they are."""
    title, _, rest = _printable_lines(text).partition("\n")
    lines = (
        f'<pre style="{_FONT};background:none;border:0;margin:0">{escape(rest)}</pre>'
    )
    return _block([f"<strong>{as_html(title)}</strong>", lines])


def _printable_lines(text: str) -> str:
    """Return a text whose lines have no other characters that a terminal obeys."""
    return "\n".join(printable(line) for line in text.split("\n"))


def table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], picture: str
) -> str:
    """Return a table of numbers; middle rows and last columns may be omitted."""
    count = len(rows)
    shown = list(rows)
    if count > _ROWS:
        more = [f"… {count - _ROWS} more", *[""] * (len(head) - 1)]
        shown = [*rows[: _ROWS // 2], more, *rows[-(_ROWS // 2) :]]
    names = list(head[:_COLUMNS])
    if len(head) > _COLUMNS:
        names.append(f"… {len(head) - _COLUMNS} more")
    made = [
        "".join(_cell(each, _NUMBER, tag) for each in row[: len(names)])
        for tag, row in [("th", names), *(("td", row) for row in shown)]
    ]
    return _block([f"<strong>{as_html(title)}</strong>", _table(made), picture])


def bars(levels: Sequence[tuple[str, str, float]], highest: str) -> str:
    """Draw bars of several kinds side by side; each has a text and a height to 1."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in levels))
    width = _WIDTH / max(len(levels), 1)
    shapes = [
        f'<rect x="{i * width:.1f}" y="{_HEIGHT * (1 - height):.1f}" '
        f'width="{max(width - 0.4, 0.5):.1f}" height="{_HEIGHT * height:.1f}" '
        f'fill="{_colour(kinds.index(kind))}"><title>{as_html(words)}</title></rect>'
        for i, (kind, words, height) in enumerate(levels)
    ]
    return _picture(shapes, kinds, highest)


def lines(series: Mapping[str, Sequence[float]]) -> str:
    """Draw a line for each series over time; values that are not finite are omitted."""
    known = [value for each in series.values() for value in each if isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    shapes = []
    for number, values in enumerate(series.values()):
        step = _WIDTH / max(len(values) - 1, 1)
        every = max(len(values) // _WIDTH, 1)
        points = " ".join(
            f"{i * step:.1f},{_HEIGHT * (1 - (value - low) / ((high - low) or 1)):.1f}"
            for i, value in enumerate(values)
            if isfinite(value) and i % every == 0
        )
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke-width="2" '
            f'stroke="{_colour(number)}"/>'
        )
    return _picture(shapes, list(series), f"lowest {low:.4g}, highest {high:.4g}")


def _picture(shapes: Sequence[str], kinds: Sequence[str], words: str) -> str:
    keys = " ".join(
        f'<span style="color:{_colour(i)}">■</span> {as_html(kind)}'
        for i, kind in enumerate(kinds)
    )
    return (
        f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 4}" role="img" '
        f'style="display:block;width:100%;max-width:{_WIDTH}px;margin:4px 0;'
        f'border-bottom:1px solid currentColor" aria-label="{as_html(words)}">'
        f"{''.join(shapes)}</svg><div>{keys} · {as_html(words)}</div>"
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _block(parts: Iterable[str]) -> str:
    return f'<div style="{_FONT}">{"".join(parts)}</div>'


def _heading(text: str) -> str:
    return f'<div style="margin-top:6px">{as_html(text)}</div>' if text else ""


def _table(lines: Iterable[str]) -> str:
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return (
        '<table style="border-collapse:collapse;margin:2px 0;font:inherit;'
        f'color:inherit">{body}</table>'
    )


def _row(row: Row) -> str:
    words = _cell(" ".join(row.words), _WORDS if row.share is None else _NAME)
    if row.share is not None:
        width = 160 * min(max(row.share, 0), 1)
        bar = (
            f'<span style="display:inline-block;height:9px;width:{width:.0f}px;'
            f'background:{COLOURS[0]}"></span>'
        )
        words = f'<td style="{_NAME}">{bar}</td>{words}'
    return _cell(row.label, _NAME) + _cell(row.value, _NUMBER) + words


def _cell(text: str, style: str, tag: str = "td") -> str:
    shown = as_html(text, _LETTERS if style == _WORDS else _LABEL)
    return f'<{tag} style="{style}">{shown}</{tag}>'
