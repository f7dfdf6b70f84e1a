"""When collectives run, and their order, which is the same on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._graph import STATE_ROLES
from memcfg.ops.collectives import COLLECTIVES

if TYPE_CHECKING:
    from memcfg.graph._graph import Graph, Op

__all__ = ["chain_collectives", "gather_late"]


def chain_collectives(graph: Graph) -> Graph:
    """Return a graph whose collectives have one order in all plans.

    Each reads the token that the one before it gives. Those that gather parts of state
    are not among them: plans choose where they run, and may run them again.

    Parameters
    ----------
    graph : Graph
        A step whose collectives all read the same token. Its updates have been hoisted,
        so that the order is that in which gradients are complete.

    Returns
    -------
    Graph
        The same ops, with other tokens.
    """
    token: int | None = None
    ops = []
    for op in graph.ops:
        if op.type in COLLECTIVES and not _gathers_state(graph, op):
            first, *others = op.inputs
            token = first if token is None else token
            pairs = [(token if i == first else i, o) for i, o in op.in_place]
            op = replace(op, inputs=(token, *others), in_place=tuple(pairs))
            token = op.outputs[0]
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def gather_late(graph: Graph) -> Graph:
    """Move ops that gather parts of state to their first readers.

    Parameters
    ----------
    graph : Graph
        A step whose updates have not been hoisted.

    Returns
    -------
    Graph
        The same ops.
    """
    waiting: dict[int, int] = {}  # gathered tensor -> index of its op
    result: list[Op] = []
    for index, op in enumerate(graph.ops):
        read = [tensor for tensor in dict.fromkeys(op.inputs) if tensor in waiting]
        result += [graph.ops[waiting.pop(tensor)] for tensor in read]
        if op.type == "all_gather" and _gathers_state(graph, op):
            waiting[op.outputs[1]] = index
        else:
            result.append(op)
    result += [graph.ops[index] for index in waiting.values()]
    return replace(graph, ops=tuple(result))


def _gathers_state(graph: Graph, op: Op) -> bool:
    """Return whether an op makes a whole tensor of parts that are state."""
    part = op.inputs[1]
    return graph.producer[part] is None and graph.tensors[part].role in STATE_ROLES
