"""The search for plans: requests, schedules, swaps, and the methods of `auto`.

Depends on `memcfg.plan.format`, not on `memcfg.plan.methods`. The exported names are
for writing policies. A `Method` is a name and a function that plans a `Request`; the
request turns a schedule into a plan. A `Chain` turns moves of stages into a schedule.
`plan_events` turns a schedule with swaps into a plan; `Trace`, `Covering` and `Swaps`
choose which tensors are swapped, and when.
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
