"""Where a plan meets memory: programs compiled once, run many times.

Owns the arena of a model, the programs that share it, and the measured memory report.
A program is compiled from a plan, or it runs op by op in a way that says where room
comes from. Refuses layers and planning decisions: a graph and a policy come in, and
what the policy says is what runs.
"""

from __future__ import annotations

from memcfg.runtime._executor import Executor
from memcfg.runtime._own_blocks import OwnBlocks
from memcfg.runtime._report import MemoryReport, TimelineEntry
from memcfg.runtime._walk import Moment, Walk, graph_order, updates_last
from memcfg.runtime._ways import NO_ROOM, Placer, Room, Way, with_margin

__all__ = [
    "NO_ROOM",
    "Executor",
    "MemoryReport",
    "Moment",
    "OwnBlocks",
    "Placer",
    "Room",
    "TimelineEntry",
    "Walk",
    "Way",
    "graph_order",
    "updates_last",
    "with_margin",
]
