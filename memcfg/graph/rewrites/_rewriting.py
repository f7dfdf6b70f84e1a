"""The rewrites of a traced graph, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph.rewrites._column_products import multiply_by_parts
from memcfg.graph.rewrites._concatenations import split_convolution_gradients
from memcfg.graph.rewrites._cross_entropy import fuse_cross_entropy
from memcfg.graph.rewrites._fusion import fuse_ops, fuse_products
from memcfg.graph.rewrites._kept_activations import spare_activations
from memcfg.graph.rewrites._reshapes import keep_one_shape
from memcfg.graph.rewrites._simplifications import (
    drop_dead_ops,
    fold_constants,
    merge_duplicates,
)
from memcfg.graph.rewrites._slices import join_padded, slice_again
from memcfg.graph.rewrites._updates import narrow_updates, tile_updates
from memcfg.graph.rewrites._wide_kernels import read_wide_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph._graph import Graph

__all__ = ["for_device", "simplify"]


def simplify(
    graph: Graph, has: Callable[[str], bool], *, differentiates: bool
) -> Graph:
    """Return a graph of fewer and smaller ops with the same results.

    Parameters
    ----------
    graph : Graph
        The graph as it was traced.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.
    differentiates : bool
        Whether the graph has gradients, for which some products are not fused.

    Returns
    -------
    Graph
        The graph after all rewrites that come before updates are hoisted.
    """
    graph = multiply_by_parts(graph, has)
    graph = fold_constants(merge_duplicates(drop_dead_ops(graph)))
    graph = keep_one_shape(slice_again(join_padded(narrow_updates(graph))))
    if not differentiates:
        graph = fuse_products(graph, has)
    return fuse_ops(split_convolution_gradients(spare_activations(graph)))


def for_device(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Return a graph with ops that a device has kernels for in the place of others.

    These rewrites come last, after updates have been hoisted.

    Parameters
    ----------
    graph : Graph
        The graph.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.

    Returns
    -------
    Graph
        The rewritten graph.
    """
    if has("dense_cross_entropy"):
        graph = fuse_cross_entropy(graph)
    return read_wide_kernels(tile_updates(graph, has), has)
