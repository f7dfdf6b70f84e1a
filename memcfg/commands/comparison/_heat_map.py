"""The results of ``memcfg compare`` as a picture: slowdowns by method and budget.

It has a light background of its own, so it can be read on a dark page.
"""

from __future__ import annotations

import math
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.commands.comparison._method_cells import MIDDLE
from memcfg.commands.comparison._method_document import at_rate
from memcfg.commands.comparison._method_report import bandwidth, percent, times
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WIDE, _HIGH, _GAP = 46, 20, 8  # size of a cell; gap between networks
_NAMES, _HOW = 186, 236  # widths of the columns of methods and techniques
_HEAD, _FOOT, _EDGE = 92, 74, 16
_SIZE, _SMALL = 12.5, 11.5  # of letters
_MOST = 1.6  # this slowdown and all above have the last colour
_COLOURS = ((0.0, (232, 244, 236)), (0.5, (248, 200, 96)), (1.0, (168, 36, 40)))
_GROUND, _INK, _FAINT = "#fdfdfb", "#1c2126", "#5d666e"
_REFUSED = "#e3e5e7"
_BRIGHT = 140  # of 255; on darker cells numbers are white


class _Place(NamedTuple):
    """A column: its position, network and budget."""

    x: float
    network: str
    budget: str


def heat_map(document: Mapping[str, Any]) -> str:
    """Draw the results as SVG: a row per method, a column per network and budget."""
    places = _places(document)
    wide = places[-1].x + _WIDE + _EDGE
    high = _HEAD + _HIGH * len(document["methods"]) + _FOOT
    rate = document["bandwidths"][MIDDLE]
    title = f"Time of a step relative to share, with {bandwidth(rate)} to the host"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" '
        f'width="{wide:g}" height="{high:g}" '
        f'font-family="system-ui, sans-serif" font-size="{_SIZE}" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        '<defs><pattern id="none" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{_REFUSED}"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="#b4babf" stroke-width="2.5"/>'
        "</pattern></defs>",
        f'<rect width="100%" height="100%" rx="6" fill="{_GROUND}"/>',
        _text(_EDGE, 28, title, size=16),
        *_head(places),
    ]
    cells = {
        (each["method"], each["network"], each["budget"]): each
        for each in document["cells"]
    }
    for number, row in enumerate(document["methods"]):
        y = _HEAD + _HIGH * number
        name, how = row["method"], ", ".join(row["technique"]) or "none"
        parts.append(_text(_EDGE, y + 14.5, name))
        parts.append(_text(_EDGE + _NAMES, y + 14.5, how, fill=_FAINT, size=_SMALL))
        for place in places:
            cell = cells[name, place.network, place.budget]
            parts += _cell(place.x, y, cell, at_rate(cell, rate))
    parts += _legend(high - _FOOT + 24)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(document: Mapping[str, Any]) -> list[_Place]:
    begin = _EDGE + _NAMES + _HOW
    budgets = document["budgets"]
    return [
        _Place(begin + (n * len(budgets) + k) * _WIDE + n * _GAP, each["network"], part)
        for n, each in enumerate(document["networks"])
        for k, part in enumerate(budgets)
    ]


def _head(places: list[_Place]) -> Iterator[str]:
    yield _text(_EDGE, _HEAD - 10, "method", fill=_FAINT)
    yield _text(_EDGE + _NAMES, _HEAD - 10, "technique", fill=_FAINT)
    for network, group in groupby(places, key=lambda place: place.network):
        columns = list(group)
        middle = (columns[0].x + columns[-1].x + _WIDE) / 2
        yield _text(middle, _HEAD - 30, network, anchor="middle")
        for place in columns:
            at = place.x + _WIDE / 2
            yield _text(at, _HEAD - 10, place.budget, anchor="middle", fill=_FAINT)


def _cell(
    x: float, y: float, cell: Mapping[str, Any], at: Mapping[str, Any]
) -> Iterator[str]:
    """Draw a slowdown on its colour, or why there is no plan."""
    message = f"{cell['method']}, {cell['network']} at {cell['budget']}: "
    if at["reason"] is None:
        message += f"{times(at['slowdown'])}, peak {percent(at['peak'])}"
        red, green, blue = colour = _colour(at["slowdown"])
        bright = 0.299 * red + 0.587 * green + 0.114 * blue
        fill = f"#{bytes(colour).hex()}"
        ink = {} if bright > _BRIGHT else {"fill": "white"}
        words = times(at["slowdown"])
    else:
        needs = at["needs_bytes"]
        message += at["reason"] if needs is None else f"needs {format_bytes(needs)}"
        fill = "url(#none)" if cell["is_below_bound"] else _REFUSED
        ink = {"fill": _FAINT}
        words = "" if cell["is_below_bound"] or needs is not None else "×"
    yield (
        f'<g><title>{escape(message)}</title><rect x="{x:g}" y="{y:g}" '
        f'width="{_WIDE - 1}" height="{_HIGH - 1}" fill="{fill}"/>'
        f"{_text(x + _WIDE / 2, y + 14.5, words, anchor='middle', **ink)}</g>"
    )


def _colour(slowdown: float) -> tuple[int, ...]:
    """Return the colour of a slowdown, on a logarithmic scale."""
    part = min(max(math.log(slowdown) / math.log(_MOST), 0.0), 1.0)
    (low, before), (high, after) = next(
        pair for pair in pairwise(_COLOURS) if part <= pair[1][0]
    )
    mixed = (part - low) / (high - low)
    return tuple(round(a + (b - a) * mixed) for a, b in zip(before, after, strict=True))


def _legend(y: float) -> Iterator[str]:
    x = float(_EDGE)
    for slowdown in (1.0, 1.1, 1.2, 1.3, 1.45, _MOST):
        fill = f"#{bytes(_colour(slowdown)).hex()}"
        yield f'<rect x="{x:g}" y="{y:g}" width="{_WIDE}" height="14" fill="{fill}"/>'
        more = " or more" if slowdown == _MOST else ""
        yield _text(x + 2, y + 30, f"{slowdown:g}{more}", size=_SMALL)
        x += _WIDE
    x += 70
    marks = (
        (_REFUSED, "", "needs more memory"),
        (_REFUSED, "×", "not for this network"),
        ("url(#none)", "", "below the lower bound of the network"),
    )
    for fill, mark, words in marks:
        yield f'<rect x="{x:g}" y="{y:g}" width="30" height="14" fill="{fill}"/>'
        yield _text(x + 15, y + 11.5, mark, anchor="middle", fill=_FAINT)
        yield _text(x + 36, y + 11.5, words, size=_SMALL)
        x += 60 + 6.4 * len(words)


def _text(x: float, y: float, words: str, **attributes: str | float) -> str:
    """Return a text element; by default with the font and colour of the picture."""
    if not words:
        return ""
    names = {"anchor": "text-anchor", "fill": "fill", "size": "font-size"}
    more = "".join(f' {names[key]}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'
