"""Timelines as PNG, drawn by matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from memcfg._terminal import shorten
from memcfg.errors import MissingDependencyError
from memcfg.timeline._timeline_colours import KINDS, colour_of_queue
from memcfg.timeline._timeline_picture import kinds_with_time, picture_of, steps_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.timeline._timeline_picture import Picture
    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["png_of"]

_SIZE, _DPI = (12.0, 8.0), 120  # inches, dots an inch
_PIXELS = 1200, 480  # of the addresses, about
_ARROWS = 80  # the largest are drawn
_NAMED = 0.03, 0.05  # parts of the axes from which a box shows its name
_LETTERS = 130  # of names beside each other, in the width of the axes


def png_of(timeline: TimelineValues) -> bytes:
    """Return the picture; MissingDependencyError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MultipleLocator
    except ImportError as error:
        raise MissingDependencyError(
            "drawing a PNG needs matplotlib: pip install 'memcfg[plots]', or save an "
            ".svg or .html, which need nothing"
        ) from error
    picture = picture_of(timeline, *_PIXELS)
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    rows = 1 + len(picture.lanes)
    places, curve, lanes = figure.subplots(
        3, 1, sharex=True, height_ratios=(10, 2.2, 0.4 * rows + 0.2)
    )
    numbers = [f"{label}: {value}" for label, value in timeline.numbers().items()]
    words = "\n".join("    ".join(row) for row in (numbers[:4], numbers[4:]) if row)
    places.set_title(f"{timeline.title}\n{words}", fontsize=9, loc="left")
    _draw_boxes(places, picture)
    _draw_arrows(places, picture)
    _draw_names(places, picture)
    _draw_levels(places, timeline, picture)
    _draw_curve(curve, timeline, picture)
    _draw_lanes(lanes, timeline, picture)
    for axes, count in ((places, 8), (curve, 2)):
        step = 2 ** (int(picture.top) // count).bit_length()
        axes.yaxis.set_major_locator(MultipleLocator(step))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_bytes(int(y))))
        axes.grid(alpha=0.25)
    places.set_xlim(0, picture.end)
    places.set_ylim(0, picture.top * 1.03)
    curve.set_ylim(0, picture.top * 1.03)
    if timeline.measured or timeline.planned[-1:] > (0.0,):
        short = picture.end < 1
        lanes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: f"{x * 1e3:.4g} ms" if short else f"{x:.4g} s")
        )
        measured = timeline.measured or timeline.is_recorded
        lanes.set_xlabel("measured" if measured else "planned")
    else:
        lanes.set_xlabel("events")
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=_DPI)
    return target.getvalue()


def _draw_boxes(axes: Any, picture: Picture) -> None:
    from matplotlib.collections import PolyCollection

    for role, colour in picture.colours.items():
        own = [each for each in picture.rectangles if each.role == role]
        corners = [
            [(b.begin, b.low), (b.begin, b.high), (b.end, b.high), (b.end, b.low)]
            for b in own
        ]
        label = f"{role.replace('_', ' ')} {format_bytes(picture.at_peak[role])}"
        axes.add_collection(
            PolyCollection(
                corners,
                facecolors=colour,
                edgecolors="white",
                linewidths=0.3,
                label=label,
            )
        )
        stripes = [each for each, box in zip(corners, own, strict=True) if box.again]
        axes.add_collection(
            PolyCollection(
                stripes, facecolors="none", edgecolors="#ffffffaa", hatch="////", lw=0
            )
        )
    again = any(each.again for each in picture.rectangles)
    title = "at the peak; striped: recomputed" if again else "at the peak"
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(**place, fontsize=7, title=title, title_fontsize=7)


def _draw_names(axes: Any, picture: Picture) -> None:
    """Write names over arrows and stripes, on plates of the boxes' colours."""
    for b in picture.rectangles:
        tall = (b.high - b.low) / picture.top > _NAMED[0]
        room = (b.end - b.begin) / picture.end
        if not b.name or not tall or room <= _NAMED[1]:
            continue
        x, y = b.begin + 0.003 * picture.end, (b.low + b.high) / 2
        plate = {"facecolor": picture.colours[b.role], "linewidth": 0, "pad": 0.6}
        name = shorten(b.name, int(_LETTERS * room))
        look = {"fontsize": 7, "color": "white", "va": "center", "bbox": plate}
        axes.text(x, y, name, **look)


def _draw_arrows(axes: Any, picture: Picture) -> None:
    by_size = sorted(picture.arrows, key=lambda pair: pair[1].low - pair[1].high)
    for source, target in by_size[:_ARROWS]:
        begin = source.end, (source.low + source.high) / 2
        end = target.begin, (target.low + target.high) / 2
        look = {"arrowstyle": "->", "color": "0.2", "alpha": 0.5, "linewidth": 0.8}
        axes.annotate("", end, begin, arrowprops=look)


def _draw_levels(axes: Any, timeline: TimelineValues, picture: Picture) -> None:
    levels = [(timeline.peak_bytes, timeline.peak_label, "0.3", ":")]
    if timeline.measured_peak_bytes is not None:
        levels.append((timeline.measured_peak_bytes, "measured peak", "#b35900", ":"))
    if timeline.limit_bytes is not None:
        levels.append((timeline.limit_bytes, "limit", "#c62828", "--"))
    for nbytes, _, colour, style in levels:
        if nbytes <= picture.top:
            axes.axhline(nbytes, color=colour, linestyle=style, linewidth=1)
    words = ", ".join(f"{name} {format_bytes(nbytes)}" for nbytes, name, _, _ in levels)
    axes.set_ylabel(f"address ({words})", fontsize=8)


def _draw_curve(axes: Any, timeline: TimelineValues, picture: Picture) -> None:
    live = [event.live_bytes for event in timeline.events]
    corners = steps_of(picture.times, live, _PIXELS[0])
    axes.fill_between(*zip(*corners, strict=True), color="#4b8bd6", alpha=0.4)
    if timeline.measured_bytes:
        corners = steps_of(picture.times, timeline.measured_bytes, _PIXELS[0])
        axes.plot(*zip(*corners, strict=True), color="#b35900", linewidth=1)
    if timeline.limit_bytes is not None and timeline.limit_bytes <= picture.top:
        axes.axhline(timeline.limit_bytes, color="#c62828", linestyle="--", linewidth=1)
    axes.set_ylabel("in use", fontsize=8)


def _draw_lanes(axes: Any, timeline: TimelineValues, picture: Picture) -> None:
    spans: dict[str, list[tuple[float, float]]] = {}
    again = []
    for number, event in enumerate(timeline.events):
        begin, end = picture.times[number : number + 2]
        spans.setdefault(event.kind, []).append((begin, end - begin))
        if event.again:
            again.append((begin, end - begin))
    for kind in kinds_with_time(timeline, picture):
        axes.broken_barh(spans[kind], (0.1, 0.8), facecolors=KINDS[kind], label=kind)
    stripes = {"facecolors": "none", "edgecolors": "#ffffffaa", "hatch": "////"}
    axes.broken_barh(again, (0.1, 0.8), **stripes, linewidth=0)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.4)}
    axes.legend(**place, fontsize=7)
    names = ["events" if timeline.is_recorded else "compute"]
    for row, (queue, lane) in enumerate(picture.lanes.items(), 1):
        names.append(queue)
        each = [(begin, end - begin) for begin, end in lane]
        axes.broken_barh(each, (row + 0.1, 0.8), facecolors=colour_of_queue(queue))
    axes.set_yticks([row + 0.5 for row in range(len(names))], names, fontsize=8)
    axes.set_ylim(len(names), 0)
