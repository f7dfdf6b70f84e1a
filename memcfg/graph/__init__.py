"""One training step as a static graph of ops over tensors.

Contains `Tensor`, `Op` and `Graph`, the `Builder` that traces a model, reverse-mode
`gradients`, passes that rewrite a graph to be smaller or need less memory, and the
interchange format. It is pure: it uses no device, array, plan or clock. `memcfg.ops`
defines what an op type means.
"""

from __future__ import annotations

from memcfg.graph._allowance import Allowance, allowed_ops, spend
from memcfg.graph._builder import Builder, Integers
from memcfg.graph._cost import (
    NOMINAL_CODECS,
    NOMINAL_COPY,
    NOMINAL_LINK,
    memory_seconds,
    nominal_seconds_of,
)
from memcfg.graph._gradients import gradients
from memcfg.graph._graph import (
    PHASES,
    ROLES,
    TIMES,
    Algorithm,
    Graph,
    Link,
    Op,
    Tensor,
    Tier,
)
from memcfg.graph._profiles import PROFILES, Profile, with_profile
from memcfg.graph.rewrites._collective_order import chain_collectives, gather_late
from memcfg.graph.rewrites._concatenations import (
    read_concatenations,
    split_convolution_gradients,
)
from memcfg.graph.rewrites._cross_entropy import fuse_cross_entropy
from memcfg.graph.rewrites._fusion import fuse_ops, fuse_products
from memcfg.graph.rewrites._kept_activations import spare_activations
from memcfg.graph.rewrites._outside_results import with_results_outside
from memcfg.graph.rewrites._reshapes import keep_one_shape
from memcfg.graph.rewrites._rewriting import for_device, simplify
from memcfg.graph.rewrites._simplifications import (
    drop_dead_ops,
    fold_constants,
    merge_duplicates,
)
from memcfg.graph.rewrites._slices import join_padded, slice_again
from memcfg.graph.rewrites._updates import (
    hoist_updates,
    narrow_updates,
    tile_updates,
    update_order,
)
from memcfg.graph.rewrites._wide_kernels import read_wide_kernels

__all__ = [
    "NOMINAL_CODECS",
    "NOMINAL_COPY",
    "NOMINAL_LINK",
    "PHASES",
    "PROFILES",
    "ROLES",
    "TIMES",
    "Algorithm",
    "Allowance",
    "Builder",
    "Graph",
    "Integers",
    "Link",
    "Op",
    "Profile",
    "Tensor",
    "Tier",
    "allowed_ops",
    "chain_collectives",
    "drop_dead_ops",
    "fold_constants",
    "for_device",
    "fuse_cross_entropy",
    "fuse_ops",
    "fuse_products",
    "gather_late",
    "gradients",
    "hoist_updates",
    "join_padded",
    "keep_one_shape",
    "memory_seconds",
    "merge_duplicates",
    "narrow_updates",
    "nominal_seconds_of",
    "read_concatenations",
    "read_wide_kernels",
    "simplify",
    "slice_again",
    "spare_activations",
    "spend",
    "split_convolution_gradients",
    "tile_updates",
    "update_order",
    "with_profile",
    "with_results_outside",
]
