"""Memory plans of training steps, and the policies that make them.

A plan says where each buffer of a step lies and when it is in use. The package contains
the policies, placement, the simulator, the independent validator, lower bounds and the
interchange format. It is pure: it uses no device, array or clock.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memcfg._missing import refuse
from memcfg.plan.format._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan.format._csv import read_buffers, write_placement
from memcfg.plan.format._judge import unchecked_claims, validate, violations
from memcfg.plan.format._place import Buffer, Placement, place
from memcfg.plan.format._plan import Group, Plan, Predicted, Recosted, Summary
from memcfg.plan.format._plan_timeline import memory_timeline
from memcfg.plan.format._ranks import validate_ranks
from memcfg.plan.format._simulate import (
    Scheduled,
    Simulation,
    simulate,
    with_copies_placed,
)
from memcfg.plan.format._stage import Stage
from memcfg.plan.search._auto import auto
from memcfg.plan.search._bound import lower_bound
from memcfg.plan.search._contenders import contenders
from memcfg.plan.search._exact import exact
from memcfg.plan.search._overlap import overlap_collectives
from memcfg.plan.search._policy import Policy
from memcfg.plan.search._reconsidered import reconsidered, recosted
from memcfg.plan.search._request import state_updates, with_updates_in_time
from memcfg.plan.search._share import share
from memcfg.plan.search._time_bound import time_lower_bound
from memcfg.plan.search._watch import seconds_left
from memcfg.plan.search.algorithms._less_scratch import plan_within
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._recomputation import sqrt_checkpoint
from memcfg.plan.search.recompute._repeated_blocks import repeated_blocks
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.plan.search.swaps._out_of_core import out_of_core

if TYPE_CHECKING:
    from memcfg.plan.methods import (
        NAMED_POLICIES,
        POLICIES,
        actnn,
        balanced,
        bptt_hidden,
        bptt_internal,
        bptt_mixed,
        by_need,
        by_priority,
        capuchin,
        capuchin_feedback,
        cdma,
        chain,
        checkmate,
        checkmate_lp,
        chen_budget,
        chen_mirror,
        chen_recursive,
        chen_sqrt,
        gist,
        in_place,
        keep_all,
        kusumoto_exact_memory,
        kusumoto_exact_time,
        kusumoto_pruned_memory,
        kusumoto_pruned_time,
        layrub,
        layrub_migration,
        meng_attention,
        meng_swap,
        modnn,
        mxnet,
        order,
        recompute,
        retention_intervals,
        revolve,
        rotor,
        superneurons,
        superneurons_cache,
        superneurons_cost,
        superneurons_memory,
        superneurons_speed,
        ucudnn_wd,
        ucudnn_wr,
        vdnn_all,
        vdnn_conv,
        vdnn_dyn,
        vdnn_pp,
        workspace_balanced,
        workspace_dynamic,
        workspace_memory,
        workspace_performance,
        workspace_priority,
    )

__all__ = [
    "NAMED_POLICIES",
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
    "Recosted",
    "Scheduled",
    "Simulation",
    "Stage",
    "Start",
    "Summary",
    "SwapIn",
    "SwapOut",
    "Wait",
    "actnn",
    "auto",
    "balanced",
    "bptt_hidden",
    "bptt_internal",
    "bptt_mixed",
    "by_need",
    "by_priority",
    "capuchin",
    "capuchin_feedback",
    "cdma",
    "chain",
    "checkmate",
    "checkmate_lp",
    "chen_budget",
    "chen_mirror",
    "chen_recursive",
    "chen_sqrt",
    "contenders",
    "exact",
    "gist",
    "in_place",
    "keep_all",
    "kusumoto_exact_memory",
    "kusumoto_exact_time",
    "kusumoto_pruned_memory",
    "kusumoto_pruned_time",
    "layrub",
    "layrub_migration",
    "look_ahead",
    "lower_bound",
    "memory_timeline",
    "meng_attention",
    "meng_swap",
    "modnn",
    "mxnet",
    "order",
    "out_of_core",
    "overlap_collectives",
    "place",
    "plan_within",
    "read_buffers",
    "recompute",
    "reconsidered",
    "recosted",
    "repeated_blocks",
    "replay_elementwise",
    "retention_intervals",
    "revolve",
    "rotor",
    "seconds_left",
    "share",
    "simulate",
    "sqrt_checkpoint",
    "state_updates",
    "superneurons",
    "superneurons_cache",
    "superneurons_cost",
    "superneurons_memory",
    "superneurons_speed",
    "time_lower_bound",
    "ucudnn_wd",
    "ucudnn_wr",
    "unchecked_claims",
    "validate",
    "validate_ranks",
    "vdnn_all",
    "vdnn_conv",
    "vdnn_dyn",
    "vdnn_pp",
    "violations",
    "with_copies_placed",
    "with_updates_in_time",
    "workspace_balanced",
    "workspace_dynamic",
    "workspace_memory",
    "workspace_performance",
    "workspace_priority",
    "write_placement",
]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import the methods of the literature when one of them is first used."""
        if name not in __all__:
            refuse("memcfg.plan", name)
        value = getattr(import_module("memcfg.plan.methods"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__]
