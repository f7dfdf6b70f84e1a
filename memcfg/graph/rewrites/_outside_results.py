"""Results that lie in arrays of the caller instead of the arena."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from memcfg.graph._graph import Graph

__all__ = ["with_results_outside"]

# Ops whose output equals the input byte for byte, so that both may share bytes even if
# the op is computed again.
_COPIES = ("flatten", "reshape")


def with_results_outside(graph: Graph, results: Collection[int]) -> Graph:
    """Return a graph whose results lie outside of the arena.

    A result that an op reads, or that no op produces, stays in the arena. What a
    reshape turns into a result lies outside as well, in the same bytes.

    Parameters
    ----------
    graph : Graph
        A graph without a training step.
    results : collection of int
        Ids of tensors of `keep`.

    Returns
    -------
    Graph
        The same graph, in which these tensors are `outside` and have no bytes.
    """
    chosen = {
        tensor
        for tensor in results
        if graph.producer[tensor] is not None and not graph.consumers[tensor]
    }
    outside = {source for tensor in chosen for source in _sources(graph, tensor)}
    outside |= chosen
    if not outside:
        return graph
    tensors = tuple(
        replace(tensor, nbytes=0) if number in outside else tensor
        for number, tensor in enumerate(graph.tensors)
    )
    ops = tuple(
        replace(op, in_place=tuple(p for p in op.in_place if p[1] not in outside))
        for op in graph.ops
    )
    return replace(graph, tensors=tensors, ops=ops, outside=tuple(sorted(outside)))


def _sources(graph: Graph, result: int) -> list[int]:
    """Return the tensors that reshapes turn into a result and nothing else reads."""
    found: list[int] = []
    kept = {*graph.keep, *graph.losses}
    while True:
        index = graph.producer[result]
        assert index is not None  # of a result, and of the sources below
        op = graph.ops[index]
        if op.type not in _COPIES or not op.in_place:
            return found
        source = op.inputs[0]
        if (
            source in kept
            or graph.producer[source] is None
            or graph.consumers[source] != (index,)
        ):
            return found
        found.append(source)
        result = source
