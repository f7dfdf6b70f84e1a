"""When collectives run, and their order, which is the same on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._graph import STATE_ROLES
from memcfg.ops.sections import BESIDE, READS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph._graph import Graph, Op

__all__ = ["chain_collectives", "gather_late"]

_OF_INDICES = ("gather", "scatter_add")  # with indices that are state, too


def chain_collectives(graph: Graph) -> Graph:
    """Return a graph whose collectives have one order in all plans.

    Each reads the token that the one before it gives. Those that gather parts of state
    are not among them: plans choose where they run, and may run them again. Reads of
    files have a chain of their own.

    Parameters
    ----------
    graph : Graph
        A step whose collectives all read the same token, as do its reads. Its updates
        have been hoisted, so that the order is that in which gradients are complete.

    Returns
    -------
    Graph
        The same ops, with other tokens.
    """
    tokens: dict[bool, int] = {}  # the last one of collectives, and of reads
    ops = []
    for op in graph.ops:
        if op.type in BESIDE and op.type != "all_gather":
            first, *others = op.inputs
            token = tokens.get(op.type in READS, first)
            pairs = [(token if i == first else i, o) for i, o in op.in_place]
            op = replace(op, inputs=(token, *others), in_place=tuple(pairs))
            tokens[op.type in READS] = op.outputs[0]
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def gather_late(graph: Graph) -> Graph:
    """Move ops that put weights together from state to their first readers.

    These gather the parts of ranks, compute a weight from other weights and indices, or
    read it from a file.

    Parameters
    ----------
    graph : Graph
        A step whose updates have not been hoisted.

    Returns
    -------
    Graph
        The same ops.
    """
    waiting: dict[int, list[Op]] = {}  # tensor -> the ops that make it
    result: list[Op] = []
    for op in graph.ops:
        read = [tensor for tensor in dict.fromkeys(op.inputs) if tensor in waiting]
        before = [each for tensor in read for each in waiting.pop(tensor)]
        if _gathers_state(graph, op, read):
            has_token = op.type in BESIDE
            made = op.outputs[1 if has_token else 0]
            waiting[made] = [*before, op]
        else:
            result += [*before, op]
    result += [op for ops in waiting.values() for op in ops]
    return replace(graph, ops=tuple(result))


def _gathers_state(graph: Graph, op: Op, made: Sequence[int]) -> bool:
    """Return whether an op makes a weight of state, or of what is `made` of state."""
    if op.type == "all_gather":
        part = op.inputs[1]
        return graph.producer[part] is None and graph.tensors[part].role in STATE_ROLES
    if op.type in READS:
        return True
    if op.type == "reshape":
        return bool(made)
    return op.type in _OF_INDICES and all(
        each in made or graph.tensors[each].role in STATE_ROLES for each in op.inputs
    )
