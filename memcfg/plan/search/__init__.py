"""How plans are found: requests, schedules, clocks, swaps, and what `auto` tries.

Stands on `memcfg.plan.format`, and knows nothing of `memcfg.plan.methods`. The names
here are those that a policy is written with: a `Method` is a name and a function of a
`Request`, which makes the plan of a schedule. A `Chain` turns moves of stages into a
schedule, `plan_events` one in which tensors leave and come back into a plan; `Trace`,
`Covering` and `Swaps` choose what leaves, and when.
"""

from __future__ import annotations

from memcfg.plan.search._policy import Lessons, Method
from memcfg.plan.search._request import Request
from memcfg.plan.search._watch import Watch
from memcfg.plan.search.recompute._chain import Chain, Do, cuts, even_segments
from memcfg.plan.search.swaps._accesses import Entry, Gap, Trace
from memcfg.plan.search.swaps._covering import Covering
from memcfg.plan.search.swaps._event_times import clock, with_tiers_told
from memcfg.plan.search.swaps._swap_events import (
    EndSwapIn,
    EndSwapOut,
    Pack,
    Run,
    StartSwapIn,
    StartSwapOut,
    Unpack,
    least_load,
    plan_events,
)
from memcfg.plan.search.swaps._walk import Swaps, Walked

__all__ = [
    "Chain",
    "Covering",
    "Do",
    "EndSwapIn",
    "EndSwapOut",
    "Entry",
    "Gap",
    "Lessons",
    "Method",
    "Pack",
    "Request",
    "Run",
    "StartSwapIn",
    "StartSwapOut",
    "Swaps",
    "Trace",
    "Unpack",
    "Walked",
    "Watch",
    "clock",
    "cuts",
    "even_segments",
    "least_load",
    "plan_events",
    "with_tiers_told",
]
