"""Every tensor its own bytes: the yardstick, and the fewest assumptions.

Owns the policy `keep_all`. Refuses every saving but one: the update of a parameter
or of optimizer state takes the place of the old value, as in every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan._actions import Action, Alias, Alloc, Compute
from memcfg.plan._lifetimes import Request
from memcfg.plan._policy import fits, refuse
from memcfg.plan._updates import state_updates
from memcfg.units import align_up

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["KeepAll", "keep_all"]


@dataclass(frozen=True)
class KeepAll:
    """The policy that `keep_all` makes."""

    name: str = "keep_all"

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        plan = request.plan(_actions(request.graph))
        if not fits(plan):
            raise refuse(plan, other="auto(), which reuses memory")
        return plan


def keep_all() -> KeepAll:
    """Give every tensor its own bytes for the whole step.

    Returns
    -------
    KeepAll
        The policy. Its peak is the sum of all rounded sizes, updates of the state
        left out, plus one scratch buffer, as large as the largest, that all ops use.
    """
    return KeepAll()


def _actions(graph: Graph) -> list[Action]:
    source_of = state_updates(graph)
    rest = [t for t in range(len(graph.tensors)) if t not in source_of]
    offsets: dict[int, int] = {}
    end = 0
    for tensor in dict.fromkeys((*graph.persistent, *rest)):
        offsets[tensor] = end
        end += align_up(graph.tensors[tensor].nbytes)
    made = graph.producer
    actions: list[Action] = [Alloc(t, offsets[t]) for t in rest if made[t] is None]
    for index, op in enumerate(graph.ops):
        for t in op.outputs:
            own = t in offsets
            actions.append(Alloc(t, offsets[t]) if own else Alias(t, source_of[t]))
        actions.append(Compute(index, None, end if op.scratch_bytes else None))
    return actions
