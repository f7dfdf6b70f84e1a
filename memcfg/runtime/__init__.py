"""Where a plan meets memory: programs compiled once, run many times.

Owns the arena of a model, the programs that share it, and the measured memory report.
A program is compiled from a plan and a placement: a policy places everything in the
arena, a workspace mode in buffers beside it. Refuses layers and planning decisions: a
graph and a policy come in, and what the policy says is what runs.
"""

from __future__ import annotations

from memcfg.runtime._executor import Executor
from memcfg.runtime._placement import (
    ARENA,
    OWN_BUFFERS,
    Buffer,
    ExecutionMode,
    Life,
    Placement,
    pack,
    with_margin,
)
from memcfg.runtime._report import CodingEntry, MemoryReport, TimelineEntry
from memcfg.runtime._schedule import Schedule, ScheduledOp, graph_order, updates_last
from memcfg.runtime._state import state_bytes

__all__ = [
    "ARENA",
    "OWN_BUFFERS",
    "Buffer",
    "CodingEntry",
    "ExecutionMode",
    "Executor",
    "Life",
    "MemoryReport",
    "Placement",
    "Schedule",
    "ScheduledOp",
    "TimelineEntry",
    "graph_order",
    "pack",
    "state_bytes",
    "updates_last",
    "with_margin",
]
