"""Charts as PNG, drawn by matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from memcfg._html import COLOURS
from memcfg.errors import MissingDependencyError
from memcfg.evaluation.curves._chart import Bars, Cells, Line

if TYPE_CHECKING:
    from memcfg.evaluation.curves._chart import Chart

__all__ = ["png_of"]

_SIZE, _DPI = (6.0, 4.6), 150  # inches, dots an inch
_TEXTS = 20  # classes up to which cells have texts


def png_of(chart: Chart) -> bytes:
    """Return a chart as PNG; MissingDependencyError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "drawing a PNG needs matplotlib: pip install 'memcfg[plots]', or save an "
            ".svg, which needs nothing"
        ) from error
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    number = 0
    for each in chart.content:
        if isinstance(each, Cells):
            _cells(axes, each)
        elif isinstance(each, Line) and each.dashed:
            axes.plot(each.x, each.y, "--", color="0.6", label=each.label or None)
        else:
            _series(axes, each, COLOURS[number % len(COLOURS)])
            number += 1
    if not any(isinstance(each, Cells) for each in chart.content):
        axes.set_xlim(*chart.x_range)
        axes.set_ylim(*chart.y_range)
        axes.grid(alpha=0.3)
        if any(each.label for each in chart.content):
            axes.legend(loc="lower right", framealpha=0.8)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=_DPI)
    return target.getvalue()


def _series(axes: Any, each: Line | Bars, colour: str) -> None:
    label = each.label or None
    if isinstance(each, Bars):
        axes.stairs(each.heights, each.edges, fill=True, color=colour, label=label)
        return
    marker = "o" if each.dots else None
    axes.plot(each.x, each.y, color=colour, label=label, marker=marker)
    if each.filled:
        axes.fill_between(each.x, each.y, color=colour, alpha=0.13)


def _cells(axes: Any, cells: Cells) -> None:
    axes.imshow(cells.shades, cmap="Blues", vmin=0, vmax=1)
    count = len(cells.rows)
    if count > _TEXTS:
        return
    axes.set_xticks(range(count), cells.columns, rotation=45, ha="right")
    axes.set_yticks(range(count), cells.rows)
    for i in range(count):
        for j in range(count):
            colour = "white" if cells.shades[i][j] > 0.5 else "black"
            axes.text(j, i, cells.texts[i][j], ha="center", va="center", color=colour)
