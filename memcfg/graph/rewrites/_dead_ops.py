"""Dead code elimination: drop ops whose results are not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph

__all__ = ["drop_dead_ops"]


def drop_dead_ops(graph: Graph) -> Graph:
    """Drop ops on which no tensor of `keep` or `losses` depends.

    Parameters
    ----------
    graph : Graph
        A step that keeps the results of its updates.

    Returns
    -------
    Graph
        The same step, without these ops and their outputs. Inputs and state remain.
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
