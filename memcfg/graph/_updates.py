"""Hoisting: each update as early as the graph allows.

A gradient that is consumed at once need not wait, live, for the end of the step.
"""

from __future__ import annotations

from dataclasses import replace

from memcfg.graph._graph import STATE_ROLES, Graph, Op

__all__ = ["hoist_updates"]


def hoist_updates(graph: Graph) -> Graph:
    """Move every update op to the earliest place that the graph allows.

    An update stands after the whole forward phase (so that a step whose loss is
    not finite changes nothing), after the producers of its inputs, and after every
    other reader of the state that it overwrites.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same tensors and ops, the updates moved.
    """
    last_forward = max(
        (i for i, op in enumerate(graph.ops) if op.phase == "forward"), default=-1
    )
    after: dict[int, int] = {}  # update op -> the non-update op it follows
    for index, op in enumerate(graph.ops):
        if op.phase == "update":
            after[index] = _earliest(graph, index, op, after, last_forward)
    order: list[Op] = [graph.ops[i] for i, place in after.items() if place == -1]
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            order.append(op)
            order += [graph.ops[i] for i, place in after.items() if place == index]
    return replace(graph, ops=tuple(order))


def _earliest(
    graph: Graph, index: int, op: Op, after: dict[int, int], last_forward: int
) -> int:
    place = last_forward
    for tensor in op.inputs:
        made = graph.producer[tensor]
        if made is not None:
            place = max(place, after.get(made, made))
    for source, _ in op.in_place:
        if graph.tensors[source].role in STATE_ROLES:
            readers = (i for i in graph.consumers[source] if i != index)
            place = max([place, *(after.get(i, i) for i in readers)])
    return place
