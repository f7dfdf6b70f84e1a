"""The order of collectives that ranks choose by their plans, agreed by all of them.

Most collectives form a chain in the graph of a step. Those that gather parts of weights
do not, since plans decide where they run, and how often. Plans of ranks may differ: in
their limits, samples and measured times. Then the rank whose limit leaves least decides
for all.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg.plan.search._agreed import Agreed, collectives_of, schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy

__all__ = ["Orders"]


class _Said(NamedTuple):
    """What a rank says of its plans."""

    orders: tuple[frozenset[bytes], ...]  # digests of the collectives, by batch
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
        batches: Sequence[Sequence[tuple[Graph, Plan]]],
        exchange: Callable[[Any], list[Any]],
    ) -> bool:
        """Agree with the other ranks; return whether programs must be loaded again.

        Each batch has a program, or one for each size of its micro-batches.
        """
        own = [min(row, key=lambda pair: _left(pair[1])) for row in batches if row]
        orders = tuple(
            frozenset(
                _digest(collectives_of(graph, schedule_of(plan))) for graph, plan in row
            )
            for row in batches
        )
        types = [[op.type for op in graph.ops] for row in batches for graph, _ in row]
        left = min([_left(plan) for _, plan in own], default=math.inf)
        ops = _digest([*dict.fromkeys(map(tuple, types))])
        said = exchange(_Said(orders, ops, left))
        chosen: list[Sequence[int]] = [schedule_of(plan) for _, plan in own]
        is_one = True  # whether all graphs have the same ops
        is_same = all(each.orders == orders for each in said)
        if not is_same or any(len(found) > 1 for found in orders):
            least = min(said, key=lambda each: each.left)
            given = exchange([np.asarray(each, np.int32).tobytes() for each in chosen])
            row = given[said.index(least)]
            chosen = [np.frombuffer(data, np.int32).tolist() for data in row]
            is_one = all(each.ops == said[0].ops for each in said)
            self.changes += 1
        rows = (row for row in batches if row)
        for pairs, schedule in zip(rows, chosen, strict=True):
            for graph, _ in pairs:
                own_order = range(len(graph.ops))
                self._schedules[graph.name] = schedule if is_one else own_order
        return self.changes > self.loaded


def _digest(rows: Any) -> bytes:
    return blake2b(repr(rows).encode(), digest_size=16).digest()


def _left(plan: Plan) -> float:
    """Return the bytes that a plan leaves of its limit."""
    return math.inf if plan.limit_bytes is None else plan.limit_bytes - plan.peak_bytes
