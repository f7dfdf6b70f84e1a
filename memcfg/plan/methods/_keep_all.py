"""Plans in which every tensor has its own bytes, except in-place updates of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Action, Alias, Alloc, Compute
from memcfg.plan.search._policy import Method
from memcfg.plan.search._request import Request, state_updates

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy


def keep_all() -> Policy:
    """Keep every tensor in its own bytes for the whole step.

    Returns
    -------
    Policy
        The policy. Its peak is the sum of all rounded sizes, without updated state,
        plus one scratch buffer that all ops share. Updates of state are in place.
    """
    return Method("keep_all", _keep_all, "auto(), which reuses memory")


def _keep_all(request: Request) -> Plan:
    graph = request.graph
    source_of = state_updates(graph)
    rest = [t for t in range(len(graph.tensors)) if t not in source_of]
    offsets: dict[int, int] = {}
    end = 0
    for tensor in dict.fromkeys((*graph.persistent, *rest)):
        offsets[tensor] = end
        end += graph.aligned_bytes[tensor]
    made = graph.producer
    actions: list[Action] = [Alloc(t, offsets[t]) for t in rest if made[t] is None]
    for index, op in enumerate(graph.ops):
        for t in op.outputs:
            own = t in offsets
            actions.append(Alloc(t, offsets[t]) if own else Alias(t, source_of[t]))
        actions.append(Compute(index, None, end if op.scratch_bytes else None))
    return request.plan(actions)
