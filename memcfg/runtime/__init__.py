"""Execution of plans in memory: programs compiled once and run many times.

Owns the arena of a model, the programs that share it, and the measured memory report.
A program is compiled from a plan and a placement: a policy places every tensor in the
arena, a workspace mode also in separate buffers. It knows no layers and makes no
planning decisions: it takes a graph and a policy and runs the plan that the policy
returns.
"""

from __future__ import annotations

from memcfg.runtime._caller_arrays import aligned_empty
from memcfg.runtime._executor import NO_PLAN, Executor
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
from memcfg.runtime._state import FirstValue, state_bytes

__all__ = [
    "ARENA",
    "NO_PLAN",
    "OWN_BUFFERS",
    "Buffer",
    "CodingEntry",
    "ExecutionMode",
    "Executor",
    "FirstValue",
    "Life",
    "MemoryReport",
    "Placement",
    "Schedule",
    "ScheduledOp",
    "TimelineEntry",
    "aligned_empty",
    "graph_order",
    "pack",
    "state_bytes",
    "updates_last",
    "with_margin",
]
