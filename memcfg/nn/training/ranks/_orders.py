"""The order of collectives that ranks choose by their plans, agreed by all of them.

Most collectives form a chain in the graph of a step. Those that gather parts of weights
do not, since plans decide where they run, and how often. Plans of ranks may differ: in
their limits, samples and measured times. Then the rank whose limit leaves least decides
for all.
"""

from __future__ import annotations

import math
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.plan.search._agreed import Agreed, collectives_of, schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy

__all__ = ["Orders"]


class _Said(NamedTuple):
    """What a rank says of its plans."""

    order: bytes  # a digest of their collectives
    ops: bytes  # a digest of all ops
    left: float  # bytes of the limit


class Orders:
    """The agreed schedules of the programs of a rank."""

    def __init__(self) -> None:
        self._schedules: dict[str, Sequence[int]] = {}  # by name of the graph
        self.changes = 0  # of schedules by other ranks: plans from before are not used
        self.loaded = 0  # changes when programs were loaded

    def policy(self, policy: Policy) -> Policy:
        """Return a policy that keeps what has been agreed."""
        return Agreed(policy, self._schedules, self.changes)

    def agree(
        self,
        plans: Sequence[tuple[Graph, Plan]],
        exchange: Callable[[Any], list[Any]],
    ) -> bool:
        """Agree with the other ranks; return whether programs must be loaded again."""
        own = [schedule_of(plan) for _, plan in plans]
        rows = [
            collectives_of(graph, schedule)
            for (graph, _), schedule in zip(plans, own, strict=True)
        ]
        types = [[op.type for op in graph.ops] for graph, _ in plans]
        left = min([_left(plan) for _, plan in plans], default=math.inf)
        said = exchange(_Said(_digest(rows), _digest(types), left))
        chosen: Sequence[Sequence[int]] = own
        if any(each.order != said[0].order for each in said):
            least = min(said, key=lambda each: each.left)
            given = exchange([array("i", each).tobytes() for each in own])
            chosen = [array("i", data) for data in given[said.index(least)]]
            if any(each.ops != said[0].ops for each in said):
                chosen = [range(len(graph.ops)) for graph, _ in plans]
            self.changes += 1
        names = [graph.name for graph, _ in plans]
        self._schedules |= zip(names, chosen, strict=True)
        return chosen is not own


def _digest(rows: Any) -> bytes:
    return blake2b(repr(rows).encode(), digest_size=16).digest()


def _left(plan: Plan) -> float:
    """Return the bytes that a plan leaves of its limit."""
    return math.inf if plan.limit_bytes is None else plan.limit_bytes - plan.peak_bytes
