"""Ops whose results nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph

__all__ = ["drop_dead_ops"]


def drop_dead_ops(graph: Graph) -> Graph:
    """Leave out the ops, and what they make, that nothing kept depends on.

    Parameters
    ----------
    graph : Graph
        A step whose updates are among what it keeps.

    Returns
    -------
    Graph
        The same step; tensors that no op makes are all there.
    """
    needed = {*graph.keep, *graph.losses}
    ops = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    if len(ops) == len(graph.ops):
        return graph
    made = {tensor for op in ops for tensor in op.outputs}
    left = [
        tensor
        for tensor, maker in enumerate(graph.producer)
        if maker is None or tensor in made
    ]
    return graph.restricted(left, ops[::-1])
