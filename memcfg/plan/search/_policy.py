"""The protocol of policies, and `Method`, the class of most of them.

A policy is a value: a frozen object that can be compared, printed and stored in a
model's configuration.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from memcfg._advice import larger_limit_or
from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.search._full_tiers import within_tiers
from memcfg.plan.search._request import Request
from memcfg.plan.search._time_bound import with_gap
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.format._simulate import Simulation
    from memcfg.plan.search.algorithms._claims import Order


class Policy(Protocol):
    """A method that plans a graph within a limit.

    It is called as ``policy(graph, limit_bytes=limit)``, with a `memcfg.graph.Graph`
    and a number of bytes, or None for no limit, and returns a `Plan`. The policies of
    `memcfg.plan` raise `InfeasiblePlanError` if they have no plan within the limit,
    `GraphError` for a graph that they cannot plan, TypeError for arguments of other
    types, and ValueError for a limit that is not positive. When `seconds_left` runs
    out, a policy returns the best plan that fits so far, or raises TimeoutError.

    Attributes
    ----------
    name : str
        The policy's name, as ``memcfg plan --method`` takes it.
    lossless : bool, optional
        Whether encoded tensors are restored exactly, as far as ops read them. The
        policies of `memcfg.plan` have it; for others it is True by default.
    """

    @property
    def name(self) -> str:
        """The method's name."""

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph."""


class Lessons(NamedTuple):
    """How a method learns from the real steps of a program.

    Parameters
    ----------
    first : Policy
        The policy of the first step, before anything is measured.
    feedback : callable
        ``feedback(policy, graph, plan, measured)`` returns the next policy, equal to
        `policy` if there is nothing more to learn; `measured` is a `Simulation`.
    """

    first: Policy
    feedback: Callable[[Policy, Graph, Plan, Simulation], Policy]


@dataclass(frozen=True)
class Method:
    """A policy made of a planning function; it raises if the plan exceeds the limit.

    Parameters
    ----------
    name : str
        The policy's name.
    make : callable
        ``make(request)`` returns a plan within the limit of a `Request`, or else the
        plan with the lowest peak that it finds.
    other : str, default ""
        Another policy for the error message, which may fit where this one does not.
    swaps : bool, default False
        Whether plans swap or encode tensors.
    chooses : bool, default False
        Whether plans name algorithms.
    learns : Lessons, optional
        How the method learns from real steps.
    lossless : bool, default True
        Whether encoded tensors are restored exactly, as far as ops read them.
    order : callable, optional
        The order in which claims to memory are met; None is by need.
    """

    name: str
    make: Callable[[Request], Plan] = field(repr=False)
    other: str = field(default="", repr=False)
    swaps: bool = field(default=False, repr=False)
    chooses: bool = field(default=False, repr=False)
    learns: Lessons | None = field(default=None, repr=False)
    lossless: bool = field(default=True, repr=False)
    order: Order | None = field(default=None, repr=False)

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        return with_gap(graph, self.draft(graph, limit_bytes))

    def propose(self, request: Request) -> Plan:
        """Plan within a limit, or else for the lowest peak that the method reaches.

        Parameters
        ----------
        request : Request
            The request, possibly of another method.

        Returns
        -------
        memcfg.plan.Plan
            The plan, which may exceed the limit.
        """
        return self.make(request.of_method(self.name))

    def draft(self, graph: Graph, limit_bytes: int | None) -> Plan:
        """Plan a graph without computing the plan's gap.

        Parameters
        ----------
        graph : memcfg.graph.Graph
            The graph.
        limit_bytes : int or None
            The limit in bytes; None is no limit.

        Returns
        -------
        memcfg.plan.Plan
            The plan, without a gap unless the method has proven one.

        Raises
        ------
        InfeasiblePlanError
            If the method has no plan within the limit.
        """
        if not (self.swaps or self.chooses):  # the base of a choosing method may swap
            return self._within(graph, limit_bytes)
        return within_tiers(self.name, graph, limit_bytes, self._within, self._tried)

    def _within(self, graph: Graph, limit_bytes: int | None) -> Plan:
        plan = self.propose(Request.of(graph, self.name, limit_bytes))
        return refuse_unless_it_fits(graph, plan, self.other)

    def _tried(self, graph: Graph, limit_bytes: int) -> Plan:
        request = Request.of(graph, self.name, limit_bytes)
        plan = self.propose(replace(request, below=sys.float_info.max))
        return refuse_unless_it_fits(graph, plan, self.other)


def draft(policy: Policy, graph: Graph, limit_bytes: int | None) -> Plan:
    """Plan a graph, without computing the gap if the policy is a `Method`."""
    if isinstance(policy, Method):
        return policy.draft(graph, limit_bytes)
    return policy(graph, limit_bytes)


def propose(policy: Policy, request: Request) -> Plan:
    """Plan by a policy; see `Method.propose`. Other policies raise if nothing fits."""
    if isinstance(policy, Method):
        return policy.propose(request)
    plan = policy(request.graph, limit_bytes=request.limit_bytes)
    return replace(plan, actions=tuple(map(request.renumbered, plan.actions)))


def is_lossless(policy: Policy) -> bool:
    """Return the policy's attribute `lossless`, by default True; see `Policy`."""
    return bool(getattr(policy, "lossless", True))


def fits(plan: Plan) -> bool:
    """Return whether a plan's peak is within its own limit."""
    return plan.limit_bytes is None or plan.peak_bytes <= plan.limit_bytes


def algorithms_of(plan: Plan) -> dict[int, str]:
    """Map ops to the algorithms that a plan names."""
    return {
        action.op: action.algorithm
        for action in plan.actions
        if isinstance(action, Compute) and action.algorithm is not None
    }


def names_algorithms(plan: Plan) -> bool:
    """Return whether a plan names algorithms, which may round differently."""
    return bool(algorithms_of(plan))


def refuse_unless_it_fits(graph: Graph, plan: Plan, other: str = "") -> Plan:
    """Return a method's plan, or raise InfeasiblePlanError if it exceeds its limit.

    The plan must have the lowest peak of the method then. `other` is named in the hint.
    """
    if fits(plan):
        return plan
    others = [f"plan with {other}"] if other else []
    message = (
        f"{plan.method} cannot plan {plan.graph!r} within "
        f"{format_bytes(plan.limit_bytes or 0, exact=True)}."
    )
    if plan.summary is not None and plan.summary.unproven:
        message += " Its search ended early: that is not proven."
    raise InfeasiblePlanError(
        message,
        smallest_limit_bytes=plan.peak_bytes,
        lower_bound_bytes=plan.lower_bound_bytes,
        requested_bytes=plan.peak_bytes,
        limit_bytes=plan.limit_bytes,
        hint=larger_limit_or(graph.batch_size, *others),
    )
