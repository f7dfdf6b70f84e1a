"""Composition of techniques: order, in place, recomputation, placement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg._checks import check_policy, unknown
from memcfg.errors import InfeasiblePlanError, PlanError
from memcfg.plan.format._actions import Alias, Alloc, Compute, Free
from memcfg.plan.format._judge import validate
from memcfg.plan.format._stage import Stage
from memcfg.plan.methods._policies import NAMED_POLICIES
from memcfg.plan.search._policy import Method, fits, refuse_unless_it_fits
from memcfg.plan.search._request import Request, without_pairs
from memcfg.plan.search._time_bound import with_gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy

_STAGES = ("order", "in_place", "recompute", "place")
_SWITCHES = {"order": "orders", "in_place": "in_place", "place": "searches"}
_ALL = "order(), in_place(), recompute(...), place()"
_ROUNDS = 8  # tighter goals for the policy while the whole chain exceeds the limit


@dataclass(frozen=True, repr=False)
class Composition:
    """The policy that `chain` returns."""

    lossless: ClassVar = True
    stages: tuple[Stage, ...]

    @property
    def name(self) -> str:
        """The expression that creates the policy."""
        return f"chain({', '.join(map(repr, self.stages))})"

    def __repr__(self) -> str:
        return self.name

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        plan = self._plan(graph, request)
        return with_gap(graph, refuse_unless_it_fits(graph, plan))

    def _plan(self, graph: Graph, request: Request) -> Plan:
        """Return the plan of the whole chain, which may exceed the limit."""
        start = replace(
            request, limit_bytes=None, orders=False, in_place=False, searches=False
        )
        run = _Progress(graph, start, range(len(request.graph.ops)))
        run.lay_out("the start")
        for number, stage in enumerate(self.stages):
            if stage.policy is not None:
                return self._replayed(run, number, request.limit_bytes)
            run.apply(stage)
        return replace(run.plan, limit_bytes=request.limit_bytes)

    def _replayed(self, run: _Progress, number: int, limit: int | None) -> Plan:
        """Run the stages from `recompute` on, with goals for its policy."""
        if limit is None:
            return self._finished(run, number, None)
        goal = limit
        for left in reversed(range(_ROUNDS)):
            try:
                plan = self._finished(run, number, goal)
            except InfeasiblePlanError as refusal:
                goal = refusal.smallest_limit_bytes
                break
            plan = replace(plan, limit_bytes=limit)
            if fits(plan):
                return plan
            # A goal of 1 in the last round raises the error with the smallest limit.
            goal = max(1, goal - (plan.peak_bytes - limit)) if left > 1 else 1
        try:
            plan = self._finished(run, number, goal)
        except InfeasiblePlanError:  # it named a limit that it does not reach
            plan = self._finished(run, number, None)
        return replace(plan, limit_bytes=limit)

    def _finished(self, run: _Progress, number: int, goal: int | None) -> Plan:
        stage, *rest = self.stages[number:]
        places = any(other.name == "place" for other in rest)
        last = run.recomputing(stage, goal, searches=places)
        for other in rest:
            last.apply(other)
        return last.plan


class _Progress:
    """State of a chain while its stages run: the request, sequence and current plan."""

    plan: Plan

    def __init__(self, graph: Graph, request: Request, sequence: Sequence[int]) -> None:
        self.graph = graph
        self.request = request
        self.sequence = sequence
        self.unproven = False

    def apply(self, stage: Stage) -> None:
        """Apply a stage other than `recompute`; it also holds for later stages."""
        decided: dict[str, Any] = {_SWITCHES[stage.name]: True}
        self.request = replace(self.request, **decided)
        self.lay_out(repr(stage))

    def lay_out(self, after: str) -> None:
        """Make and validate the whole plan."""
        plan = self.request.ordered(self.sequence)
        try:
            validate(self.graph, plan)
        except PlanError as error:
            raise PlanError(f"after {after}, {error}") from error
        if self.unproven:
            assert plan.summary is not None
            plan = replace(plan, summary=replace(plan.summary, unproven=True))
        self.plan = plan

    def recomputing(
        self, stage: Stage, goal: int | None, *, searches: bool
    ) -> _Progress:
        """Return the progress with the sequence of computations of a stage's policy.

        The policy plans the graph in the current order, without in-place pairs unless
        `in_place` was applied. InfeasiblePlanError if it has no plan within the goal.
        """
        number = {given: own for own, given in enumerate(self.request.order)}
        now = [number[a.op] for a in self.plan.actions if isinstance(a, Compute)]
        graph = self.request.graph
        graph = replace(graph, ops=tuple(graph.ops[op] for op in now))
        if not self.request.in_place:
            graph = without_pairs(graph)
        policy = stage.policy
        if isinstance(policy, Method):
            asked = Request.of(graph, policy.name, goal)
            orders = self.request.orders
            asked = replace(asked, orders=orders, searches=searches)
            plan = refuse_unless_it_fits(graph, policy.make(asked))
        else:
            assert policy is not None
            plan = policy(graph, limit_bytes=goal)
        sequence = [now[op] for op in _computations(plan, stage)]
        run = _Progress(self.graph, self.request, sequence)
        run.unproven = plan.summary is not None and plan.summary.unproven
        run.lay_out(repr(stage))
        return run


def _computations(plan: Plan, stage: Stage) -> list[int]:
    """Return the ops of a plan in order; ValueError if it does more than compute."""
    for action in plan.actions:
        named = isinstance(action, Compute) and action.algorithm is not None
        if named or not isinstance(action, Alloc | Alias | Free | Compute):
            kind = "names algorithms" if named else "copies or encodes"
            raise ValueError(
                f"{stage!r} takes policies that only compute, but this one {kind}"
            )
    return [action.op for action in plan.actions if isinstance(action, Compute)]


def chain(*stages: Stage) -> Policy:
    """Compose stages to a policy; each passes a whole plan to the next one.

    Parameters
    ----------
    *stages : Stage
        Any of `order()`, `in_place()`, ``recompute(...)`` and `place()`, each at most
        once, in this order.

    Returns
    -------
    Policy
        The policy. Its name and ``repr`` are the expression that creates it. Chains of
        equal stages are equal.

    Raises
    ------
    TypeError
        If an argument is not a stage.
    ValueError
        If the stages are in another order, or one is duplicated.

    Notes
    -----
    The initial plan computes each op once in the graph's order, only updates of state
    are in place, and each buffer lies at the lowest free offset when its lifetime
    begins. A stage changes one of these properties, also for later stages: with
    `order()`, the ops that `recompute` adds are put in order as well. The plan of each
    stage is validated. Without a limit there is one plan. With a limit, the policy of
    `recompute` plans within it, or within less if the rest of the chain needs more; the
    error of a limit that is too low states what the chain needs with that policy's
    lowest peak. ``chain(order(), in_place(), place())`` is equivalent to `share`.

    Examples
    --------
    >>> from memcfg.plan import chain, in_place, order, place, recompute
    >>> chain(order(), in_place(), recompute("rotor"), place())
    chain(order(), in_place(), recompute('rotor'), place())
    """
    last = -1
    for stage in stages:
        if not isinstance(stage, Stage):
            raise TypeError(f"a chain is made of {_ALL}, not {_named(stage)}")
        rank = _STAGES.index(stage.name)
        if rank <= last:
            before = f"after {_STAGES[last]}" if rank < last else "twice"
            raise ValueError(
                f"{stage.name} comes {before}; the order is {_ALL}, each at most once"
            )
        last = rank
    return Composition(stages)


def _named(value: object) -> str:
    """Return a value's ``repr``; for a stage function, a hint to call it."""
    name = getattr(value, "__name__", "")
    return f"the function {name}: call it" if name in _STAGES else repr(value)


def order() -> Stage:
    """Run the ops in the order with the lowest peak found.

    Returns
    -------
    Stage
        A stage of `chain`. Ops are ordered by minimum cuts, as by `share`. Without this
        stage, they run in the graph's order or in that of `recompute`.
    """
    return Stage("order")


def in_place() -> Stage:
    """Let outputs overwrite inputs where ops declare in-place pairs.

    Returns
    -------
    Stage
        A stage of `chain`. The input of a pair must have no later reader. Without this
        stage, only updates of state are in place.
    """
    return Stage("in_place")


def recompute(policy: Policy | str) -> Stage:
    """Recompute the ops that a policy recomputes.

    Parameters
    ----------
    policy : Policy or str
        A method or its name. Only its sequence of computations is used; the chain
        decides placement and in-place outputs.

    Returns
    -------
    Stage
        A stage of `chain`. Without this stage, no op is computed twice.

    Raises
    ------
    TypeError
        If `policy` is not a policy, or has no argument `limit_bytes`.
    ValueError
        If there is no policy of that name, or the method swaps or chooses algorithms.

    Notes
    -----
    The policy plans the graph in the order of the `order` stage, and without in-place
    pairs unless there is an `in_place` stage. The methods of `memcfg.plan` choose among
    their schedules by the chain's placement, and reorder ops only with `order`. `auto`,
    `exact` and users' policies may use any order. If the policy's plan copies, encodes
    or names algorithms, calling the chain raises ValueError.
    """
    if isinstance(policy, str):
        if policy not in NAMED_POLICIES:
            raise unknown("policy", policy, NAMED_POLICIES)
        return Stage("recompute", _computing(NAMED_POLICIES[policy]()), repr(policy))
    given: object = policy
    for name, make in NAMED_POLICIES.items():
        if given is make:
            raise TypeError(f"recompute takes a policy: call {name}()")
    if not callable(policy) or isinstance(policy, type):
        raise TypeError(f"recompute takes a policy or its name, not {policy!r}")
    check_policy(policy)
    name = str(getattr(policy, "name", ""))
    known = name in NAMED_POLICIES and NAMED_POLICIES[name]() == policy
    return Stage("recompute", _computing(policy), repr(name if known else policy))


def _computing(policy: Policy) -> Policy:
    """Return the policy; ValueError if the method swaps or chooses algorithms."""
    swaps = getattr(policy, "swaps", False)
    if swaps or (isinstance(policy, Method) and policy.chooses):
        does = "swaps" if swaps else "chooses algorithms: pass it the chain as base"
        raise ValueError(
            f"recompute takes methods that only compute, but {policy.name} {does}"
        )
    return policy
