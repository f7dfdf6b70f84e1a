"""Plans: where every byte of a step lies, and when; values in, values out.

Methods that plan a graph, placement, the simulator, the independent validator, the
lower bounds, and the interchange format.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from memcfg.plan._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan._auto import auto
from memcfg.plan._bound import lower_bound
from memcfg.plan._checkmate import checkmate, checkmate_lp
from memcfg.plan._chen import chen_budget, chen_mirror, chen_recursive, chen_sqrt
from memcfg.plan._csv import read_buffers, write_placement
from memcfg.plan._exact import exact
from memcfg.plan._gruslys import bptt_hidden, bptt_internal, bptt_mixed
from memcfg.plan._judge import unchecked_claims, validate, violations
from memcfg.plan._keep_all import keep_all
from memcfg.plan._kusumoto import (
    kusumoto_exact_memory,
    kusumoto_exact_time,
    kusumoto_pruned_memory,
    kusumoto_pruned_time,
)
from memcfg.plan._less_scratch import plan_within
from memcfg.plan._lifetimes import state_updates, with_updates_in_time
from memcfg.plan._look_ahead import look_ahead
from memcfg.plan._mxnet import mxnet
from memcfg.plan._place import Buffer, Placement, place
from memcfg.plan._plan import Group, Plan, Predicted, Summary
from memcfg.plan._policy import Policy
from memcfg.plan._replay_elementwise import replay_elementwise
from memcfg.plan._retention_intervals import retention_intervals
from memcfg.plan._revolve import revolve
from memcfg.plan._rotor import rotor
from memcfg.plan._share import share
from memcfg.plan._simulate import (
    Scheduled,
    Simulation,
    simulate,
    with_copies_placed,
)
from memcfg.plan._sqrt_checkpoint import sqrt_checkpoint
from memcfg.plan._superneurons import (
    superneurons_cost,
    superneurons_memory,
    superneurons_speed,
)
from memcfg.plan._time_bound import time_lower_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "auto": auto,
        "keep_all": keep_all,
        "share": share,
        "replay_elementwise": replay_elementwise,
        "sqrt_checkpoint": sqrt_checkpoint,
        "look_ahead": look_ahead,
        "mxnet": mxnet,
        "chen_sqrt": chen_sqrt,
        "chen_mirror": chen_mirror,
        "chen_budget": chen_budget,
        "chen_recursive": chen_recursive,
        "revolve": revolve,
        "rotor": rotor,
        "bptt_hidden": bptt_hidden,
        "bptt_internal": bptt_internal,
        "bptt_mixed": bptt_mixed,
        "superneurons_speed": superneurons_speed,
        "superneurons_memory": superneurons_memory,
        "superneurons_cost": superneurons_cost,
        "kusumoto_exact_time": kusumoto_exact_time,
        "kusumoto_exact_memory": kusumoto_exact_memory,
        "kusumoto_pruned_time": kusumoto_pruned_time,
        "kusumoto_pruned_memory": kusumoto_pruned_memory,
        "checkmate": checkmate,
        "checkmate_lp": checkmate_lp,
        "retention_intervals": retention_intervals,
    }
)
"""What makes the policy of each name; the first is the default."""

__all__ = [
    "POLICIES",
    "Action",
    "Alias",
    "Alloc",
    "Buffer",
    "Compute",
    "Decode",
    "Encode",
    "Free",
    "Group",
    "Placement",
    "Plan",
    "Policy",
    "Predicted",
    "Scheduled",
    "Simulation",
    "Summary",
    "SwapIn",
    "SwapOut",
    "Wait",
    "auto",
    "bptt_hidden",
    "bptt_internal",
    "bptt_mixed",
    "checkmate",
    "checkmate_lp",
    "chen_budget",
    "chen_mirror",
    "chen_recursive",
    "chen_sqrt",
    "exact",
    "keep_all",
    "kusumoto_exact_memory",
    "kusumoto_exact_time",
    "kusumoto_pruned_memory",
    "kusumoto_pruned_time",
    "look_ahead",
    "lower_bound",
    "mxnet",
    "place",
    "plan_within",
    "read_buffers",
    "replay_elementwise",
    "retention_intervals",
    "revolve",
    "rotor",
    "share",
    "simulate",
    "sqrt_checkpoint",
    "state_updates",
    "superneurons_cost",
    "superneurons_memory",
    "superneurons_speed",
    "time_lower_bound",
    "unchecked_claims",
    "validate",
    "violations",
    "with_copies_placed",
    "with_updates_in_time",
    "write_placement",
]


def __dir__() -> list[str]:
    return [*__all__]
