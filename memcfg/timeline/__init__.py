"""Timelines of memory: which tensor had which bytes when, drawn and written.

`Model.memory_timeline`, `memcfg.plan.memory_timeline`, `Trace.timeline` and
`ModelBudget.memory_timeline` make them. A timeline is a pure value; how it is drawn
does not depend on what it is made from.
"""

from memcfg.timeline._memory_timeline import SUFFIXES, MemoryTimeline
from memcfg.timeline._timeline_parts import Arrow, Box, Copy, Event

__all__ = ["SUFFIXES", "Arrow", "Box", "Copy", "Event", "MemoryTimeline"]
