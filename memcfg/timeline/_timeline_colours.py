"""Colours of timelines: of roles, layers, kinds of events and queues.

All are of medium lightness, visible on white and on black.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KINDS", "colour_of_queue", "colours_of"]

_ROLES = {
    "parameter": "#4b8bd6",
    "optimizer_state": "#7a6fd0",
    "packed": "#3aa3b0",
    "activation": "#3fa55b",
    "activation_gradient": "#d9822b",
    "gradient": "#cf5a5a",
    "input": "#8a929c",
    "output": "#b59b2b",
    "scratch": "#b565c9",
    "encoded": "#2f9c86",
}
KINDS = {
    "forward": "#4b8bd6",
    "backward": "#d9822b",
    "update": "#3fa55b",
    "wait": "#cf5a5a",
    "encode": "#2f9c86",
    "decode": "#3aa3b0",
    "allocate": "#4b8bd6",
    "free": "#8a929c",
    "refused": "#cf5a5a",
}
"""The colour of each kind of event."""
_TURN = 0.381966  # of the circle of hues: neighbours differ most (golden angle)


def colours_of(names: Iterable[str]) -> list[str]:
    """Return a colour for each role, layer or tag, in their order."""
    return [_ROLES.get(name) or _nth(number) for number, name in enumerate(names)]


def _nth(number: int) -> str:
    """Return a colour of its own for a number."""
    lightness = (0.52, 0.43, 0.61)[number // 8 % 3]
    red, green, blue = hls_to_rgb((0.58 + number * _TURN) % 1, lightness, 0.45)
    return "#" + "".join(f"{round(255 * each):02x}" for each in (red, green, blue))


def colour_of_queue(queue: str) -> str:
    """Return the colour of a lane or of the network."""
    if queue.endswith(" out"):
        return "#b565c9"
    return "#3aa3b0" if queue.endswith(" in") else "#7a6fd0"
