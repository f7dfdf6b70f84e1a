"""What a plan did, told in the names of its graph.

Owns the grouping of a plan's actions into kept, shared and recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan._actions import Alias, Compute
from memcfg.plan._plan import Group, Summary
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan
    from memcfg.plan._simulate import Simulation

__all__ = ["summarise"]

_FEW = 3  # names that a group shows


def summarise(
    graph: Graph, plan: Plan, simulation: Simulation, all_bytes: int
) -> Summary:
    """Tell what a plan did."""
    again = _recomputed(plan)
    busiest = simulation.busiest_op
    return Summary(
        kept=_tensors(graph, plan, _kept(graph, again)),
        in_place=_tensors(graph, plan, _in_place(plan)),
        recomputed=_ops(graph, plan, again),
        by_role={k: v for k, v in simulation.by_role_at_peak.items() if v},
        busiest_op="" if busiest is None else graph.ops[busiest].name,
        all_bytes=all_bytes,
    )


def _recomputed(plan: Plan) -> list[int]:
    seen: set[int] = set()
    again: dict[int, None] = {}
    for action in plan.actions:
        if isinstance(action, Compute):
            if action.op in seen:
                again[action.op] = None
            seen.add(action.op)
    return list(again)


def _kept(graph: Graph, again: Sequence[int]) -> list[int]:
    """List outputs of forward ops that a backward op reads as first made."""
    recomputed = set(again)
    return [
        tensor
        for index, op in enumerate(graph.ops)
        if op.phase == "forward" and index not in recomputed
        for tensor in op.outputs
        if any(graph.ops[r].phase == "backward" for r in graph.consumers[tensor])
    ]


def _in_place(plan: Plan) -> list[int]:
    outputs = [a.output for a in plan.actions if isinstance(a, Alias)]
    return list(dict.fromkeys(outputs))


def _tensors(graph: Graph, plan: Plan, tensors: Sequence[int]) -> Group:
    sizes = [align_up(graph.tensors[t].nbytes, plan.alignment) for t in tensors]
    return _group([graph.tensors[t].name for t in tensors], sizes)


def _ops(graph: Graph, plan: Plan, ops: Sequence[int]) -> Group:
    sizes = [
        sum(align_up(graph.tensors[t].nbytes, plan.alignment) for t in outputs)
        for outputs in (graph.ops[index].outputs for index in ops)
    ]
    return _group([graph.ops[index].name for index in ops], sizes)


def _group(names: Sequence[str], sizes: Sequence[int]) -> Group:
    """Show the largest first; of equals, in the order given."""
    order = sorted(range(len(names)), key=lambda k: -sizes[k])
    return Group(len(names), sum(sizes), tuple(names[k] for k in order[:_FEW]))
