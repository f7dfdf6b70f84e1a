"""The methods of the literature, and the table of all policies by name.

Each paper has its own module; other modules contain what several papers share.
`memcfg.plan.search` does not depend on this package. Only `memcfg.plan` (lazily) and
`memcfg.commands` import it.

In addition to policies, the package has the published schedules of chains of Griewank
and Walther, and of Gruslys et al.; `memcfg.plan.search.Chain` maps them to any graph.
"""

from __future__ import annotations

from memcfg.plan.methods._algorithm_policies import (
    workspace_balanced,
    workspace_dynamic,
    workspace_memory,
    workspace_performance,
    workspace_priority,
)
from memcfg.plan.methods._allocation import balanced, by_need, by_priority
from memcfg.plan.methods._capuchin import capuchin, capuchin_feedback
from memcfg.plan.methods._cdma import cdma
from memcfg.plan.methods._checkmate import checkmate, checkmate_lp
from memcfg.plan.methods._chen import (
    chen_budget,
    chen_mirror,
    chen_recursive,
    chen_sqrt,
)
from memcfg.plan.methods._composition import chain, in_place, order, recompute
from memcfg.plan.methods._gist import actnn, gist
from memcfg.plan.methods._gruslys import (
    Table,
    bptt_hidden,
    bptt_internal,
    bptt_mixed,
    hidden_table,
    internal_table,
    mixed_table,
    table_moves,
)
from memcfg.plan.methods._keep_all import keep_all
from memcfg.plan.methods._kusumoto import (
    kusumoto_exact_memory,
    kusumoto_exact_time,
    kusumoto_pruned_memory,
    kusumoto_pruned_time,
)
from memcfg.plan.methods._layrub import layrub, layrub_migration
from memcfg.plan.methods._meng_attention import meng_attention
from memcfg.plan.methods._meng_swap import meng_swap
from memcfg.plan.methods._modnn import modnn
from memcfg.plan.methods._mxnet import mxnet
from memcfg.plan.methods._policies import NAMED_POLICIES, POLICIES
from memcfg.plan.methods._retention_intervals import retention_intervals
from memcfg.plan.methods._revolve import revolve, revolve_forwards, revolve_moves
from memcfg.plan.methods._rotor import rotor
from memcfg.plan.methods._superneurons import (
    superneurons,
    superneurons_cache,
    superneurons_cost,
    superneurons_memory,
    superneurons_speed,
)
from memcfg.plan.methods._ucudnn import ucudnn_wd, ucudnn_wr
from memcfg.plan.methods._vdnn import vdnn_all, vdnn_conv, vdnn_dyn
from memcfg.plan.methods._vdnn_pp import vdnn_pp

__all__ = [
    "NAMED_POLICIES",
    "POLICIES",
    "Table",
    "actnn",
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
    "gist",
    "hidden_table",
    "in_place",
    "internal_table",
    "keep_all",
    "kusumoto_exact_memory",
    "kusumoto_exact_time",
    "kusumoto_pruned_memory",
    "kusumoto_pruned_time",
    "layrub",
    "layrub_migration",
    "meng_attention",
    "meng_swap",
    "mixed_table",
    "modnn",
    "mxnet",
    "order",
    "recompute",
    "retention_intervals",
    "revolve",
    "revolve_forwards",
    "revolve_moves",
    "rotor",
    "superneurons",
    "superneurons_cache",
    "superneurons_cost",
    "superneurons_memory",
    "superneurons_speed",
    "table_moves",
    "ucudnn_wd",
    "ucudnn_wr",
    "vdnn_all",
    "vdnn_conv",
    "vdnn_dyn",
    "vdnn_pp",
    "workspace_balanced",
    "workspace_dynamic",
    "workspace_memory",
    "workspace_performance",
    "workspace_priority",
]
