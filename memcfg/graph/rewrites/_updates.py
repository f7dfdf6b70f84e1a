"""Hoisting: each update runs as early as the graph allows.

A gradient that its update consumes immediately need not stay live until the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from heapq import heappop, heappush

from memcfg.errors import GraphError
from memcfg.graph._graph import STATE_ROLES, Graph, Op

__all__ = ["hoist_updates", "update_order"]


def hoist_updates(graph: Graph) -> Graph:
    """Move every update op to the earliest position that the graph allows.

    An update comes after the whole forward phase (so that a step whose loss is not
    finite changes no state), after the producers of its inputs, and after all other
    readers of the state that it overwrites.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same tensors and ops, with updates moved.

    Raises
    ------
    GraphError
        If there is no such order: an op reads both the old and the new value of a
        state, two updates overwrite one state, or the forward phase reads a new value.
    """
    return replace(graph, ops=tuple(graph.ops[i] for i in update_order(graph)))


def update_order(graph: Graph) -> tuple[int, ...]:
    """Return the order of ops of `hoist_updates`.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    tuple of int
        The indices of all ops.

    Raises
    ------
    GraphError
        If there is no such order; see `hoist_updates`.
    """
    before = _needed(graph)
    waiting = {update: len(ops) for update, ops in before.items()}
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for update, ops in before.items():
        for op in ops:
            followers[op].append(update)
    order: list[int] = []
    ready = [index for index, count in waiting.items() if not count]  # a heap

    def place(index: int) -> None:
        order.append(index)
        for update in followers[index]:
            waiting[update] -= 1
            if not waiting[update]:
                heappush(ready, update)

    for index in range(len(graph.ops)):
        while ready:
            place(heappop(ready))
        if index not in waiting:
            place(index)
    while ready:
        place(heappop(ready))
    _check_order(graph, order)
    return tuple(order)


def _needed(graph: Graph) -> dict[int, set[int]]:
    """Map each update to the ops that it must follow.

    These are the last forward op, the producers of its inputs, and the other readers of
    the state that it overwrites. Their total number is linear in the graph's operands,
    since two updates of one state raise GraphError.
    """
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward"]
    followed: dict[int, set[int]] = {}
    overwritten: dict[int, int] = {}  # state -> the update that overwrites it
    for index, op in enumerate(graph.ops):
        if op.phase == "update":
            made = (graph.producer[tensor] for tensor in op.inputs)
            makers = {maker for maker in made if maker is not None}
            states = {
                source
                for source, _ in op.in_place
                if graph.tensors[source].role in STATE_ROLES
            }
            if any(overwritten.setdefault(s, index) != index for s in states):
                raise _unordered(graph, op)
            readers = {reader for s in states for reader in graph.consumers[s]}
            followed[index] = {*forward[-1:], *makers, *readers} - {index}
    return followed


def _check_order(graph: Graph, order: list[int]) -> None:
    """Raise GraphError unless each op is in the order, after its inputs' producers."""
    places = {index: place for place, index in enumerate(order)}
    for index, op in enumerate(graph.ops):
        makers = [graph.producer[tensor] for tensor in op.inputs]
        place = places.get(index, -1)
        if any(m is not None and places.get(m, place) >= place for m in makers) or (
            place < 0
        ):
            raise _unordered(graph, op)


def _unordered(graph: Graph, op: Op) -> GraphError:
    return GraphError(
        f"graph {graph.name!r}: op {op.name!r} cannot be ordered. Updates come after "
        "the forward phase, and after other readers of their state"
    )
