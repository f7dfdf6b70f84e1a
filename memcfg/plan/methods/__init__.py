"""The methods of the literature, and the table of all names.

A paper's method has a module here, unless `auto` tries it; those are in
`memcfg.plan.search`. Only `memcfg.plan`, when such a name is first used, and
`memcfg.commands` import this package.
"""

from __future__ import annotations

from memcfg.plan.methods._checkmate import checkmate, checkmate_lp
from memcfg.plan.methods._chen import (
    chen_budget,
    chen_mirror,
    chen_recursive,
    chen_sqrt,
)
from memcfg.plan.methods._composition import chain, in_place, order, recompute
from memcfg.plan.methods._gruslys import bptt_hidden, bptt_internal, bptt_mixed
from memcfg.plan.methods._kusumoto import (
    kusumoto_exact_memory,
    kusumoto_exact_time,
    kusumoto_pruned_memory,
    kusumoto_pruned_time,
)
from memcfg.plan.methods._meng_attention import meng_attention
from memcfg.plan.methods._mxnet import mxnet
from memcfg.plan.methods._policies import NAMED_POLICIES, POLICIES
from memcfg.plan.methods._retention_intervals import retention_intervals
from memcfg.plan.methods._revolve import revolve
from memcfg.plan.methods._rotor import rotor

__all__ = [
    "NAMED_POLICIES",
    "POLICIES",
    "bptt_hidden",
    "bptt_internal",
    "bptt_mixed",
    "chain",
    "checkmate",
    "checkmate_lp",
    "chen_budget",
    "chen_mirror",
    "chen_recursive",
    "chen_sqrt",
    "in_place",
    "kusumoto_exact_memory",
    "kusumoto_exact_time",
    "kusumoto_pruned_memory",
    "kusumoto_pruned_time",
    "meng_attention",
    "mxnet",
    "order",
    "recompute",
    "retention_intervals",
    "revolve",
    "rotor",
]
