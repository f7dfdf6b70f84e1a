"""Choice of algorithms whose scratch fits in the free bytes of another policy's plan.

An op that is recomputed uses the same algorithm every time, so its results have the
same bits.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from memcfg._checks import check_policy
from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._actions import Compute
from memcfg.plan.format._simulate import buffers_at_ops
from memcfg.plan.search._policy import Method, draft, fits, is_lossless
from memcfg.plan.search._share import share
from memcfg.plan.search.algorithms._algorithms import (
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
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from memcfg.graph import Algorithm, Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class FreeGaps:
    """The free bytes below a ceiling while ops run."""

    ceiling: int | None  # None: no limit
    alignment: int
    # spans in use, by op and by action that computes it
    spans: Mapping[int, Mapping[int, _Spans]] = field(repr=False)

    @staticmethod
    def of(graph: Graph, plan: Plan, ops: Container[int]) -> FreeGaps:
        """Return the free gaps of some ops in a plan; the ceiling is its limit."""
        result: dict[int, dict[int, _Spans]] = defaultdict(dict)
        for action, op, spans in buffers_at_ops(graph, plan, ops):
            result[op][action] = spans
        return FreeGaps(plan.limit_bytes, plan.alignment, result)

    def room(self, op: int) -> int | None:
        """Return the largest scratch that fits whenever an op runs; None for any."""
        if self.ceiling is None:
            return None
        return min(
            (_largest(spans, self.ceiling) for spans in self.spans[op].values()),
            default=0,
        )

    def place(self, plan: Plan, chosen: Mapping[int, Algorithm]) -> list[Action]:
        """Return a plan's actions with these algorithms; scratch is in the lowest gap.

        Precondition: their scratch is within `room`.
        """
        actions = list(plan.actions)
        for op, algorithm in chosen.items():
            size = align_up(algorithm.scratch_bytes, self.alignment)
            for index, spans in self.spans[op].items():
                action = actions[index]
                assert isinstance(action, Compute)
                actions[index] = replace(
                    action,
                    algorithm=algorithm.name,
                    scratch_offset=_lowest(spans, size) if size else None,
                )
        return actions


def _largest(spans: _Spans, ceiling: int) -> int:
    most = at = 0
    for begin, end in spans:
        most, at = max(most, begin - at), max(at, end)
    return max(most, ceiling - at)


def _lowest(spans: _Spans, size: int) -> int:
    at = 0
    for begin, end in spans:
        if begin - at >= size:
            return at
        at = max(at, end)
    return at


def base_policy(base: Policy | None) -> Policy:
    """Return the base policy, by default `share`; TypeError if it is not a policy."""
    if base is None:
        return share()
    if not callable(base) or isinstance(base, type):
        raise TypeError(f"base must be a policy such as plan.share(), not {base!r}")
    check_policy(base)
    return base


class Rule(Protocol):
    """Planning function that chooses algorithms on top of a base policy's plan."""

    @property
    def base(self) -> Policy:
        """The base policy."""

    def __call__(self, request: Request) -> Plan:
        """Return the plan of a request."""


def over_base(name: str, rule: Rule, other: str = "") -> Method:
    """Return the policy of a rule; it is lossless if its base is."""
    return Method(name, rule, other, chooses=True, lossless=is_lossless(rule.base))


def base_plan(request: Request, base: Policy, choice: Choice) -> Plan:
    """Plan by a base policy with these algorithms, with op indices of the request.

    If it has no plan within the limit, return that for the limit which its error names.
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
    """The base policy's plan with the least scratch, and the free bytes in it."""

    request: Request
    plan: Plan
    rows: Mapping[int, list[Algorithm]]  # algorithms of ops that have several
    choice: Choice
    gaps: FreeGaps

    @staticmethod
    def of(request: Request, base: Policy, *, divided: bool) -> Scratch:
        """Plan by the base policy with the least scratch for each op."""
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
        """The request's graph."""
        return self.request.graph

    def now(self, op: int) -> Algorithm:
        """Return the algorithm of an op in the plan."""
        return self.choice.get(op, self.graph.ops[op].algorithms[0])

    def within(self, op: int, most: int | None = None) -> list[Algorithm]:
        """Return the algorithms that fit whenever an op runs, and in `most` bytes."""
        bounds = [each for each in (self.gaps.room(op), most) if each is not None]
        return [
            each
            for each in self.rows[op]
            if all(each.scratch_bytes <= bound for bound in bounds)
        ]

    def take(self, chosen: Mapping[int, Algorithm]) -> Plan:
        """Return the plan with these algorithms; other ops keep the least scratch."""
        if not fits(self.plan):
            return planned(self.request, self.plan.actions)
        other = {op: each for op, each in chosen.items() if each != self.now(op)}
        actions = self.gaps.place(self.plan, other)
        return planned(self.request, actions)


@dataclass(frozen=True)
class Uniform:
    """Rule: the fastest algorithms of all ops, or those with the least scratch."""

    base: Policy
    memory: bool

    def __call__(self, request: Request) -> Plan:
        choice = choose(request.graph, thriftiest if self.memory else fastest)
        return planned(request, base_plan(request, self.base, choice).actions)


@dataclass(frozen=True)
class Fitting:
    """Rule: the fastest algorithm that fits whenever an op runs.

    `divided` includes algorithms that process parts of the batch.
    """

    base: Policy
    divided: bool = False

    def __call__(self, request: Request) -> Plan:
        scratch = Scratch.of(request, self.base, divided=self.divided)
        chosen = {}
        for op in scratch.rows:
            fitting = [scratch.now(op), *scratch.within(op)]
            quickest = min(each.seconds for each in fitting)
            rows = scratch.rows[op]
            chosen[op] = next(
                each for each in rows if each in fitting and each.seconds == quickest
            )
        return scratch.take(chosen)


def fastest_algorithms(base: Policy) -> Policy:
    """Return the policy that uses the fastest algorithm of each op."""
    return over_base("fastest_algorithms", Uniform(base, memory=False))


def fitting_algorithms(base: Policy) -> Policy:
    """Return the policy that plans with the least scratch, then fits faster ones."""
    return over_base("fitting_algorithms", Fitting(base, divided=True))
