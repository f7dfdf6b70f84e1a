"""Tables of all policies by name."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from memcfg.plan.methods._algorithm_policies import (
    workspace_balanced,
    workspace_dynamic,
    workspace_memory,
    workspace_performance,
    workspace_priority,
)
from memcfg.plan.methods._allocation import balanced, by_need, by_priority
from memcfg.plan.methods._capuchin import capuchin
from memcfg.plan.methods._cdma import cdma
from memcfg.plan.methods._checkmate import checkmate, checkmate_lp
from memcfg.plan.methods._chen import (
    chen_budget,
    chen_mirror,
    chen_recursive,
    chen_sqrt,
)
from memcfg.plan.methods._gist import actnn, gist
from memcfg.plan.methods._gruslys import bptt_hidden, bptt_internal, bptt_mixed
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
from memcfg.plan.methods._retention_intervals import retention_intervals
from memcfg.plan.methods._revolve import revolve
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
from memcfg.plan.search._auto import auto
from memcfg.plan.search._exact import exact
from memcfg.plan.search._share import share
from memcfg.plan.search.recompute._look_ahead import look_ahead
from memcfg.plan.search.recompute._recomputation import sqrt_checkpoint
from memcfg.plan.search.recompute._repeated_blocks import repeated_blocks
from memcfg.plan.search.recompute._replay_elementwise import replay_elementwise
from memcfg.plan.search.swaps._out_of_core import out_of_core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.plan.search._policy import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "auto": auto,
        "keep_all": keep_all,
        "share": share,
        "replay_elementwise": replay_elementwise,
        "sqrt_checkpoint": sqrt_checkpoint,
        "look_ahead": look_ahead,
        "repeated_blocks": repeated_blocks,
        "out_of_core": out_of_core,
        "auto_algorithms": partial(auto, algorithms="any"),
        "mxnet": mxnet,
        "layrub": layrub,
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
        "superneurons": superneurons,
        "superneurons_cache": superneurons_cache,
        "vdnn_all": vdnn_all,
        "vdnn_conv": vdnn_conv,
        "vdnn_dyn": vdnn_dyn,
        "vdnn_pp": vdnn_pp,
        "layrub_migration": layrub_migration,
        "meng_swap": meng_swap,
        "meng_attention": meng_attention,
        "cdma": cdma,
        "gist": gist,
        "gist_fp16": partial(gist, "fp16"),
        "gist_fp10": partial(gist, "fp10"),
        "gist_fp8": partial(gist, "fp8"),
        "actnn": actnn,
        "workspace_performance": workspace_performance,
        "workspace_memory": workspace_memory,
        "workspace_dynamic": workspace_dynamic,
        "workspace_priority": workspace_priority,
        "workspace_balanced": workspace_balanced,
        "ucudnn_wr": ucudnn_wr,
        "ucudnn_wd": ucudnn_wd,
        "by_need": by_need,
        "by_priority": by_priority,
        "balanced": balanced,
        "capuchin": capuchin,
        "modnn": modnn,
        "kusumoto_exact_time": kusumoto_exact_time,
        "kusumoto_exact_memory": kusumoto_exact_memory,
        "kusumoto_pruned_time": kusumoto_pruned_time,
        "kusumoto_pruned_memory": kusumoto_pruned_memory,
        "checkmate": checkmate,
        "checkmate_lp": checkmate_lp,
        "retention_intervals": retention_intervals,
    }
)
"""Factories of the policies that are compared side by side, the default first."""

NAMED_POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {**POLICIES, "exact": exact}
)
"""Factories of all policies by name: `POLICIES`, and `exact`, whose search is slow."""
