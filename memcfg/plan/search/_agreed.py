"""Plans that run collectives in the order on which the ranks of a group have agreed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._collectives import is_collective
from memcfg.plan.search._overlap import overlapped
from memcfg.plan.search._policy import is_lossless, refuse_unless_it_fits
from memcfg.plan.search._request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

__all__ = ["Agreed", "collectives_of", "schedule_of"]


@dataclass(frozen=True)
class Agreed:
    """A policy whose plans have the collectives of agreed schedules, in their order.

    Parameters
    ----------
    policy : Policy
        Makes the plans, as long as they have this order; else the agreed schedule is
        placed as it is.
    schedules : mapping of str to sequence of int
        The ops of a schedule, by the name of the graph. Other graphs are free.
    number : int
        Counts the changes of `schedules`: plans from before a change are not used.
    """

    policy: Policy
    schedules: Mapping[str, Sequence[int]] = field(repr=False, compare=False)
    number: int = 0

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self.policy.name

    @property
    def lossless(self) -> bool:
        """Whether results are those of a step without a plan."""
        return is_lossless(self.policy)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        schedule = self.schedules.get(graph.name)
        if schedule is None:
            return self.policy(graph, limit_bytes)
        wanted = collectives_of(graph, schedule)
        try:
            plan = self.policy(graph, limit_bytes)
        except InfeasiblePlanError:
            plan = None
        if plan is not None and collectives_of(graph, schedule_of(plan)) == wanted:
            return plan
        request = Request.of(graph, self.name, limit_bytes)
        numbers = {given: index for index, given in enumerate(request.order)}
        made = request.scheduled([numbers[op] for op in schedule])
        return overlapped(request, refuse_unless_it_fits(graph, made), keeps=True)


def schedule_of(plan: Plan) -> list[int]:
    """Return the ops of a plan in the order in which they are computed or started."""
    return [action.op for action in plan.actions if isinstance(action, Compute)]


def collectives_of(graph: Graph, schedule: Iterable[int]) -> list[int]:
    """Return the collectives of a schedule."""
    return [op for op in schedule if is_collective(graph.ops[op])]
