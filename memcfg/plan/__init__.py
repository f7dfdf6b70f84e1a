"""Plans: where every byte of a step lies, and when; values in, values out.

Methods that plan a graph, placement, the simulator, the independent validator, the
lower bounds, and the interchange format.
"""

from __future__ import annotations

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
from memcfg.plan._algorithm_policies import (
    workspace_dynamic,
    workspace_memory,
    workspace_performance,
)
from memcfg.plan._auto import auto
from memcfg.plan._bound import lower_bound
from memcfg.plan._capuchin import capuchin, capuchin_feedback
from memcfg.plan._cdma import cdma
from memcfg.plan._chain_stage import Stage
from memcfg.plan._checkmate import checkmate, checkmate_lp
from memcfg.plan._chen import chen_budget, chen_mirror, chen_recursive, chen_sqrt
from memcfg.plan._composition import chain, in_place, order, recompute
from memcfg.plan._contenders import contenders
from memcfg.plan._csv import read_buffers, write_placement
from memcfg.plan._exact import exact
from memcfg.plan._gist import actnn, gist
from memcfg.plan._gruslys import bptt_hidden, bptt_internal, bptt_mixed
from memcfg.plan._judge import unchecked_claims, validate, violations
from memcfg.plan._keep_all import keep_all
from memcfg.plan._kusumoto import (
    kusumoto_exact_memory,
    kusumoto_exact_time,
    kusumoto_pruned_memory,
    kusumoto_pruned_time,
)
from memcfg.plan._layrub import layrub
from memcfg.plan._layrub_migration import layrub_migration
from memcfg.plan._less_scratch import plan_within
from memcfg.plan._lifetimes import state_updates, with_updates_in_time
from memcfg.plan._look_ahead import look_ahead
from memcfg.plan._meng_attention import meng_attention
from memcfg.plan._meng_swap import meng_swap
from memcfg.plan._modnn import modnn
from memcfg.plan._mxnet import mxnet
from memcfg.plan._out_of_core import out_of_core
from memcfg.plan._place import Buffer, Placement, place
from memcfg.plan._plan import Group, Plan, Predicted, Recosted, Summary
from memcfg.plan._policies import NAMED_POLICIES, POLICIES
from memcfg.plan._policy import Policy
from memcfg.plan._reconsidered import reconsidered, recosted
from memcfg.plan._repeated_blocks import repeated_blocks
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
from memcfg.plan._superneurons_cache import superneurons_cache
from memcfg.plan._superneurons_pool import superneurons
from memcfg.plan._time_bound import time_lower_bound
from memcfg.plan._ucudnn import ucudnn_wd, ucudnn_wr
from memcfg.plan._vdnn import vdnn_all, vdnn_conv, vdnn_dyn
from memcfg.plan._vdnn_pp import vdnn_pp
from memcfg.plan._workspace_budget import workspace_balanced, workspace_priority

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
    "Summary",
    "SwapIn",
    "SwapOut",
    "Wait",
    "actnn",
    "auto",
    "bptt_hidden",
    "bptt_internal",
    "bptt_mixed",
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
    "meng_attention",
    "meng_swap",
    "modnn",
    "mxnet",
    "order",
    "out_of_core",
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


def __dir__() -> list[str]:
    return [*__all__]
