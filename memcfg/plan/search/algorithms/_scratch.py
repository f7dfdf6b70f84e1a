"""Algorithms beside the plan of another policy, in the bytes that it leaves free.

An op that is computed again has the same algorithm each time, so what it makes has the
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
    """The bytes beside everything that is in use while ops run, below a ceiling."""

    ceiling: int | None  # None: there is always room above
    alignment: int
    spans: Mapping[int, Mapping[int, _Spans]] = field(repr=False)  # by op, by action

    @staticmethod
    def of(graph: Graph, plan: Plan, ops: Container[int]) -> FreeGaps:
        """Find those of some ops; the ceiling is the plan's limit."""
        result: dict[int, dict[int, _Spans]] = defaultdict(dict)
        for action, op, spans in buffers_at_ops(graph, plan, ops):
            result[op][action] = spans
        return FreeGaps(plan.limit_bytes, plan.alignment, result)

    def room(self, op: int) -> int | None:
        """Return the most scratch that fits whenever an op runs; None: any does."""
        if self.ceiling is None:
            return None
        return min(
            (_largest(spans, self.ceiling) for spans in self.spans[op].values()),
            default=0,
        )

    def place(self, plan: Plan, chosen: Mapping[int, Algorithm]) -> list[Action]:
        """Return a plan's actions with these algorithms, each in the lowest gap.

        Pre: their scratch is within `room`.
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
    """Return the policy whose plan is taken; TypeError if it is none."""
    if base is None:
        return share()
    if not callable(base) or isinstance(base, type):
        raise TypeError(f"base is a policy such as plan.share(), not {base!r}")
    check_policy(base)
    return base


class Rule(Protocol):
    """What chooses algorithms over the plan of a policy."""

    @property
    def base(self) -> Policy:
        """That policy."""

    def __call__(self, request: Request) -> Plan:
        """Plan."""


def over_base(name: str, rule: Rule, other: str = "") -> Method:
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
class Uniform:
    """The fastest of all ops, or those of least scratch."""

    base: Policy
    memory: bool

    def __call__(self, request: Request) -> Plan:
        choice = choose(request.graph, thriftiest if self.memory else fastest)
        return planned(request, base_plan(request, self.base, choice).actions)


@dataclass(frozen=True)
class Fitting:
    """The fastest that fits when an op runs; `divided`: also on parts of the batch."""

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
    """Take the fastest algorithm of each op, whatever scratch it needs."""
    return over_base("fastest_algorithms", Uniform(base, memory=False))


def fitting_algorithms(base: Policy) -> Policy:
    """Plan with the least scratch; each op takes the fastest that fits as it runs."""
    return over_base("fitting_algorithms", Fitting(base, divided=True))
