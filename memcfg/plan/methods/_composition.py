"""Techniques one after another: order, in place, recomputation, placement."""

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
_ROUNDS = 8  # tighter goals for a policy whose schedule exceeds the limit in the chain


@dataclass(frozen=True, repr=False)
class Composition:
    """The policy that `chain` makes."""

    lossless: ClassVar = True
    stages: tuple[Stage, ...]

    @property
    def name(self) -> str:
        """The line that makes it."""
        return f"chain({', '.join(map(repr, self.stages))})"

    def __repr__(self) -> str:
        return self.name

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        return with_gap(graph, refuse_unless_it_fits(self._plan(graph, request)))

    def _plan(self, graph: Graph, request: Request) -> Plan:
        """Make the plan of the whole chain, which may exceed the limit."""
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
        """Go on from the stage that computes ops again, with goals for its policy."""
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
            # The last time for the refusal, which says what the policy needs.
            goal = max(1, goal - (plan.peak_bytes - limit)) if left > 1 else 1
        try:
            plan = self._finished(run, number, goal)
        except InfeasiblePlanError:  # it was ended, or said too little
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
    """A chain in the making: what is to be laid out, and its plan so far."""

    plan: Plan

    def __init__(self, graph: Graph, request: Request, sequence: Sequence[int]) -> None:
        self.graph = graph
        self.request = request
        self.sequence = sequence
        self.unproven = False

    def apply(self, stage: Stage) -> None:
        """Have a stage that decides one thing for good."""
        decided: dict[str, Any] = {_SWITCHES[stage.name]: True}
        self.request = replace(self.request, **decided)
        self.lay_out(repr(stage))

    def lay_out(self, after: str) -> None:
        """Make the whole plan, and have it judged."""
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
        """Return a run with the computations of a stage's policy.

        The policy plans the graph in the order that it has by now, and without the
        pairs that are not to be taken. InfeasiblePlanError if it has no plan within
        the goal.
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
            plan = refuse_unless_it_fits(policy.make(asked))
        else:
            assert policy is not None
            plan = policy(graph, limit_bytes=goal)
        sequence = [now[op] for op in _computations(plan, stage)]
        run = _Progress(self.graph, self.request, sequence)
        run.unproven = plan.summary is not None and plan.summary.unproven
        run.lay_out(repr(stage))
        return run


def _computations(plan: Plan, stage: Stage) -> list[int]:
    """Return the ops of a plan in its order; ValueError if it does not only compute."""
    for action in plan.actions:
        named = isinstance(action, Compute) and action.algorithm is not None
        if named or not isinstance(action, Alloc | Alias | Free | Compute):
            kind = "names algorithms" if named else "copies or encodes"
            raise ValueError(f"{stage!r} takes policies that compute, and this {kind}")
    return [action.op for action in plan.actions if isinstance(action, Compute)]


def chain(*stages: Stage) -> Policy:
    """Make a policy of stages, each of which gives the next one a whole plan.

    Parameters
    ----------
    *stages : Stage
        Any of `order()`, `in_place()`, ``recompute(...)`` and `place()`, each at most
        once, in this order.

    Returns
    -------
    Policy
        The policy. It prints, and is named, as the line that makes it; chains of equal
        stages are equal.

    Raises
    ------
    TypeError
        If something is not a stage.
    ValueError
        If stages stand in another order, or one stands twice.

    Notes
    -----
    The plan that the first stage gets computes each op once in the order of the graph;
    outputs take no place of inputs, but for updates of the state, as in every plan; and
    each buffer lies in the lowest gap that there is when its life begins. A stage
    decides one of these things, for the stages behind it, too: with `order()` the ops
    that `recompute` adds are put in order as well. Every stage's plan is validated.
    Without a limit there is one plan; with one, the policy of `recompute` is asked for
    plans within it, and within less where the rest of the chain takes more. A refusal
    says what the chain takes with that policy's least peak. ``chain(order(),
    in_place(), place())`` plans what `share` does.

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
            before = f"behind {_STAGES[last]}" if rank < last else "twice"
            raise ValueError(
                f"{stage.name} stands {before}; the order is {_ALL}, each at most once"
            )
        last = rank
    return Composition(stages)


def _named(value: object) -> str:
    """Print a value; of a function the line that would have called it."""
    name = getattr(value, "__name__", "")
    return f"the function {name}: call it" if name in _STAGES else repr(value)


def order() -> Stage:
    """Run the ops in the order of the lowest peak that is found.

    Returns
    -------
    Stage
        A stage of `chain`. Ops are put in order by minimum cuts, as by `share`.
        Without it they run in the graph's order, or as `recompute` has them.
    """
    return Stage("order")


def in_place() -> Stage:
    """Let outputs take the place of inputs where the ops declare it.

    Returns
    -------
    Stage
        A stage of `chain`. The pair's input must have no later reader. Without it only
        updates of the state work in place.
    """
    return Stage("in_place")


def recompute(policy: Policy | str) -> Stage:
    """Compute again what a policy computes again.

    Parameters
    ----------
    policy : Policy or str
        A method, or its name. Its sequence of computations is taken, and nothing else:
        what lies where, and what takes whose place, the chain decides.

    Returns
    -------
    Stage
        A stage of `chain`. Without it nothing is computed twice.

    Raises
    ------
    TypeError
        If it is not a policy, or has no argument `limit_bytes`.
    ValueError
        If there is no policy of that name, or it is a method that swaps or chooses
        algorithms.

    Notes
    -----
    The policy plans the graph as it is by then: in the order of `order`, and without
    pairs unless `in_place` is there. The methods of `memcfg.plan` choose among their
    schedules as the chain would place them, and where they would put ops in order
    themselves, they do so only with `order`. `auto`, `exact` and a user's own policies
    have the order that they like. A plan that copies, encodes or names algorithms is a
    ValueError when the chain plans.
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
    """Return a policy; ValueError if it is a method that does more than compute."""
    swaps = getattr(policy, "swaps", False)
    if swaps or (isinstance(policy, Method) and policy.chooses):
        does = "swaps" if swaps else "chooses algorithms: give it the chain"
        raise ValueError(
            f"recompute takes methods that compute, and {policy.name} {does}"
        )
    return policy
