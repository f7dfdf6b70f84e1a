"""How a plan updates the state: which value takes over which buffer, and when.

Owns what planners assume of a graph's updates. Refuses graphs of which no plan is
right: the newest value of a state ends the step in the state's own bytes, and no
update runs before the forward phase has ended.
"""

from __future__ import annotations

from dataclasses import replace

from memcfg.errors import GraphError
from memcfg.graph import Graph, Op, update_order
from memcfg.units import align_up

__all__ = ["state_updates", "with_updates_in_time"]


def state_updates(graph: Graph) -> dict[int, int]:
    """Return the outputs that live on in a buffer of the state, and what they update.

    A pair counts when its input is in the state's buffers, its op is of the update
    phase and the input's last reader, and the input is not to be kept.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    dict of int to int
        Ids of outputs, to the ids of the tensors whose buffers they take over; such a
        tensor may itself be such an output.
    """
    state = set(graph.persistent)
    keep, taken = set(graph.keep), set[int]()
    updates: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if op.phase != "update":
            continue
        for source, output in op.in_place:
            legal = source in state and source not in keep
            legal = legal and graph.consumers[source][-1] == index
            fits = align_up(graph.tensors[output].nbytes) <= align_up(
                graph.tensors[source].nbytes
            )
            if legal and fits and source not in taken and output not in updates:
                updates[output] = source
                taken.add(source)
                state.add(output)
    return updates


def with_updates_in_time(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Return a graph with its updates where a plan may have them, and their order.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    Graph
        The graph itself if its updates stand so, else with them moved.
    tuple of int
        The ops of the first in the numbers of the given graph.

    Raises
    ------
    GraphError
        If there is no such order, or a state cannot be overwritten by its update.
    """
    order = tuple(range(len(graph.ops)))
    phases = [op.phase for op in graph.ops]
    last_forward = max((i for i in order if phases[i] == "forward"), default=-1)
    if "update" in phases[: last_forward + 1] or _misfit(graph):
        order = update_order(graph)
        graph = replace(graph, ops=tuple(graph.ops[i] for i in order))
    misfit = _misfit(graph)
    if misfit:
        raise GraphError(f"graph {graph.name!r} cannot be planned: {misfit}")
    return graph, order


def _misfit(graph: Graph) -> str:
    """Name an update that cannot overwrite its state; empty if there is none."""
    updates = state_updates(graph)
    state = set(graph.persistent)
    for op in graph.ops:
        for source, output in _updated(op, state).items():
            if updates.get(output) != source:
                old, new = graph.tensors[source].name, graph.tensors[output].name
                return (
                    f"{new!r} cannot take the place of {old!r}, which op {op.name!r} "
                    f"updates; {old!r} is kept, read later, or smaller"
                )
            state.add(output)
    return ""


def _updated(op: Op, state: set[int]) -> dict[int, int]:
    """Pair each state that an op updates with its new value."""
    pairs: dict[int, int] = {}
    made: set[int] = set()
    for source, output in op.in_place if op.phase == "update" else ():
        if source in state and source not in pairs and output not in made:
            pairs[source] = output
            made.add(output)
    return pairs
