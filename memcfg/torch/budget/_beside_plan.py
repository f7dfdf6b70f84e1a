"""The plan of a step with what lies beside its graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph import Tensor
from memcfg.plan import Alloc, Wait
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan import Plan


def with_beside(
    graph: Graph, plan: Plan, beside: Mapping[str, int], limit_bytes: int | None
) -> tuple[Graph, Plan]:
    """Return a graph and a plan with what lies beside them, under the whole limit.

    Each of these is a tensor that no op makes or reads, above all others: an input, as
    memcfg's own state would lie below.
    """
    beside = {name: align_up(nbytes) for name, nbytes in beside.items() if nbytes}
    first, top = len(graph.tensors), align_up(plan.peak_bytes)
    tensors, actions = [], []
    for at, (name, nbytes) in enumerate(beside.items(), first):
        tensors.append(Tensor(name, nbytes, "input"))
        actions.append(Alloc(at, top))
        top += nbytes
    moved = [
        Wait(each.action + len(actions)) if isinstance(each, Wait) else each
        for each in plan.actions
    ]
    added = sum(beside.values())
    kept = (*graph.keep, *range(first, first + len(tensors)))
    summary = plan.summary
    if summary is not None:
        roles = Counter(summary.by_role)
        for each in tensors:
            roles[each.name] += each.nbytes
        all_bytes = summary.all_bytes + added
        summary = replace(summary, by_role=dict(roles), all_bytes=all_bytes)
    predicted = replace(
        plan.predicted,
        peak_bytes=top if tensors else plan.peak_bytes,
        lower_bound_bytes=plan.lower_bound_bytes + added,
    )
    return (
        replace(graph, tensors=(*graph.tensors, *tensors), keep=kept),
        replace(
            plan,
            limit_bytes=limit_bytes,
            predicted=predicted,
            actions=(*actions, *moved),
            summary=summary,
        ),
    )
