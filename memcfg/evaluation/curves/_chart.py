"""What a figure shows, independent of the format that it is drawn in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Bars", "Cells", "Chart", "Line"]


@dataclass(frozen=True)
class Line:
    """A line through points, or a dashed one for comparison."""

    x: Any
    y: Any
    label: str = ""
    dashed: bool = False
    dots: bool = False  # whether points are marked
    filled: bool = False  # whether the area below is shaded


@dataclass(frozen=True)
class Bars:
    """Bars that stand side by side, between edges."""

    edges: Any
    heights: Any
    label: str = ""


@dataclass(frozen=True)
class Cells:
    """A matrix: a shade from 0 to 1 and a text for each cell."""

    shades: Any
    texts: list[list[str]]
    rows: list[str]
    columns: list[str]
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """Axes with lines and bars, or a matrix."""

    title: str
    x_label: str
    y_label: str
    content: tuple[Line | Bars | Cells, ...]
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)
