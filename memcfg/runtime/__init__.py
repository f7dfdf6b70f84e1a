"""Where a plan meets memory: programs compiled once, run many times.

Owns the arena of a model, the compiled programs that share it, and the measured
memory report. Refuses layers and planning decisions: a graph and a policy come in,
and what the policy says is what runs.
"""

from __future__ import annotations

from memcfg.runtime._executor import Executor
from memcfg.runtime._report import MemoryReport, TimelineEntry

__all__ = ["Executor", "MemoryReport", "TimelineEntry"]
