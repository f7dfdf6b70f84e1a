"""Which algorithm each op takes, beside the plan of another policy.

M. Rhu et al., "vDNN", MICRO 2016, for all ops alike; L. Wang et al., "SuperNeurons",
PPoPP 2018, by the bytes that are free when an op runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from memcfg._checks import check_policy
from memcfg.errors import InfeasiblePlanError
from memcfg.plan.search._algorithms import (
    Choice,
    algorithms,
    choose,
    fastest,
    least,
    named,
    planned,
    thriftiest,
    with_choice,
)
from memcfg.plan.search._free_gaps import FreeGaps
from memcfg.plan.search._policy import Method, draft, fits, is_lossless
from memcfg.plan.search._share import share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Algorithm, Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def base_policy(base: Policy | None) -> Policy:
    """Return the policy whose plan is taken; TypeError if it is none."""
    if base is None:
        return share()
    if not callable(base) or isinstance(base, type):
        raise TypeError(f"base is a policy such as plan.share(), not {base!r}")
    check_policy(base)
    return base


class _Rule(Protocol):
    """What chooses algorithms over the plan of a policy."""

    @property
    def base(self) -> Policy:
        """That policy."""

    def __call__(self, request: Request) -> Plan:
        """Plan."""


def over_base(name: str, rule: _Rule, other: str = "") -> Method:
    """Return the policy of a rule, which loses what its base loses."""
    return Method(name, rule, other, chooses=True, lossless=is_lossless(rule.base))


def base_plan(request: Request, base: Policy, choice: Choice) -> Plan:
    """Plan by another policy, with these algorithms, in the request's own numbers.

    Where it has no plan within the limit, the one of its smallest.
    """
    graph, limit = with_choice(request.graph, choice), request.limit_bytes
    try:
        plan = draft(base, graph, limit)
    except InfeasiblePlanError as refusal:
        plan = draft(base, graph, refusal.smallest_limit_bytes)
    names = {op: each.name for op, each in choice.items()}
    return replace(plan, limit_bytes=limit, actions=named(plan.actions, names))


@dataclass(frozen=True)
class Scratch:
    """A base's plan with the least scratch, and the room beside it."""

    request: Request
    plan: Plan
    rows: Mapping[int, list[Algorithm]]  # of ops that have a choice
    choice: Choice
    gaps: FreeGaps

    @staticmethod
    def of(request: Request, base: Policy, *, divided: bool) -> Scratch:
        """Plan with the least scratch for each op."""
        graph = request.graph
        choice = choose(graph, lambda op: least(algorithms(op, divided=divided)))
        plan = base_plan(request, base, choice)
        rows = {
            index: row
            for index, op in enumerate(graph.ops)
            if len(row := algorithms(op, divided=divided)) > 1
        }
        gaps = FreeGaps.of(graph, plan, rows)
        return Scratch(request, plan, rows, choice, gaps)

    @property
    def graph(self) -> Graph:
        """The request's."""
        return self.request.graph

    def now(self, op: int) -> Algorithm:
        """Return what an op has in the plan."""
        return self.choice.get(op, self.graph.ops[op].algorithms[0])

    def within(self, op: int, most: int | None = None) -> list[Algorithm]:
        """List what fits whenever an op runs, and within so many bytes."""
        bounds = [each for each in (self.gaps.room(op), most) if each is not None]
        return [
            each
            for each in self.rows[op]
            if all(each.scratch_bytes <= bound for bound in bounds)
        ]

    def take(self, chosen: Mapping[int, Algorithm]) -> Plan:
        """Make the plan with these algorithms; others have the least scratch."""
        if not fits(self.plan):
            return planned(self.request, self.plan.actions)
        other = {op: each for op, each in chosen.items() if each != self.now(op)}
        actions = self.gaps.place(self.plan, other)
        return planned(self.request, actions)


@dataclass(frozen=True)
class _Static:
    """The fastest of all ops, or those of least scratch."""

    base: Policy
    memory: bool

    def __call__(self, request: Request) -> Plan:
        choice = choose(request.graph, thriftiest if self.memory else fastest)
        return planned(request, base_plan(request, self.base, choice).actions)


@dataclass(frozen=True)
class _Dynamic:
    """The fastest that fits when an op runs."""

    base: Policy

    def __call__(self, request: Request) -> Plan:
        scratch = Scratch.of(request, self.base, divided=False)
        chosen = {}
        for op in scratch.rows:
            fitting = [scratch.now(op), *scratch.within(op)]
            quickest = min(each.seconds for each in fitting)
            rows = scratch.rows[op]
            chosen[op] = next(
                each for each in rows if each in fitting and each.seconds == quickest
            )
        return scratch.take(chosen)


def workspace_performance(base: Policy | None = None) -> Policy:
    """Take the fastest algorithm of each op, vDNN's (p).

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the scratch of these algorithms; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Which algorithm is the fastest is known of a model that is compiled with
        ``times="measured"``; by nominal times it is the device's default.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Rhu et al., "vDNN", MICRO 2016: performance-optimal algorithms. Algorithms may round
    differently.
    """
    static = _Static(base_policy(base), memory=False)
    return over_base("workspace_performance", static, _OTHER)


def workspace_memory(base: Policy | None = None) -> Policy:
    """Take the algorithm of least scratch of each op, vDNN's (m).

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the scratch of these algorithms; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Rhu et al., "vDNN", MICRO 2016: memory-optimal algorithms. Algorithms may round
    differently.
    """
    static = _Static(base_policy(base), memory=True)
    return over_base("workspace_memory", static)


def workspace_dynamic(base: Policy | None = None) -> Policy:
    """Take the fastest algorithm that the bytes hold which are free as an op runs.

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the least scratch for each op; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Free is what nothing else has at that moment, in one piece, below the
        limit; without one, all algorithms fit.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Wang et al., "SuperNeurons", PPoPP 2018: dynamic workspace allocation. An op that is
    computed again has the algorithm that fits each time, so what it makes has the same
    bits. Other algorithms may round differently.
    """
    return over_base("workspace_dynamic", _Dynamic(base_policy(base)))


_OTHER = "workspace_dynamic(), which chooses algorithms of less scratch"
