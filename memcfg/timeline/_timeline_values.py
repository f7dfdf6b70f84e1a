"""The values of a timeline, which renderers read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.timeline._timeline_parts import Arrow, Box, Copy, Event

__all__ = ["TimelineValues"]


@dataclass(frozen=True, repr=False)
class TimelineValues:
    """Events, boxes, copies and numbers; `MemoryTimeline` says what each is."""

    title: str
    events: tuple[Event, ...]
    boxes: tuple[Box, ...]
    planned: tuple[float, ...]
    measured: tuple[float, ...] = ()
    copies: tuple[Copy, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    limit_bytes: int | None = None
    peak_bytes: int = 0
    measured_peak_bytes: int | None = None
    measured_bytes: tuple[int, ...] = ()
    has_places: bool = True
    is_recorded: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[tuple[int, int]] = ((0, 0),)

    @property
    def peak_label(self) -> str:
        """What `peak_bytes` is: ``"predicted peak"``, or ``"peak"`` of a record."""
        return "peak" if self.is_recorded else "predicted peak"

    def numbers(self) -> dict[str, str]:
        """Return the limit, the peaks, the time and the facts, as text.

        Returns
        -------
        dict of str to str
            Labels and values.
        """
        rows = {
            "limit": "none" if self.limit_bytes is None else exact(self.limit_bytes),
            self.peak_label: exact(self.peak_bytes),
        }
        if self.measured_peak_bytes is not None:
            rows["measured peak"] = exact(self.measured_peak_bytes)
        return rows | dict(self.facts)
