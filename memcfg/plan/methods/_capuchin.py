"""Capuchin: what leaves or is computed again, by accesses of tensors alone.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import SwapIn, Wait
from memcfg.plan.methods._passive import Passive
from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Lessons, Method, fits
from memcfg.plan.search.swaps._event_times import rate_of
from memcfg.plan.search.swaps._evict import Evicting, start_of, unevicted
from memcfg.plan.search.swaps._swap_events import plan_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.format._simulate import Simulation
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_ROUNDS = 12  # goals of a first step, each lower by what the placement exceeds
_SOONER = 0.05  # of the seconds of a copy


@dataclass(frozen=True)
class _Passive:
    """What plans the first step, which has no trace yet."""

    def __call__(self, request: Request) -> Plan:
        """Evict where bytes are missing, and fetch what is accessed."""
        nothing = unevicted(request)
        limit = request.limit_bytes
        if limit is None or fits(nothing):
            return nothing
        trace, goal = start_of(request).trace, limit
        for _ in range(_ROUNDS):
            passive = Passive(trace, goal)
            plan = plan_events(request, passive.events())
            if fits(plan):
                return within_tier(request, plan)
            if passive.most > goal or request.is_over():  # nothing more may leave
                break
            goal -= plan.peak_bytes - limit
        least = Passive(trace, 0)
        least.events()
        plan = plan_events(request, Passive(trace, least.most).events())
        return within_tier(request, plan)


def capuchin(
    *, passive: bool = False, early: Mapping[str, float] | None = None
) -> Policy:
    """Evict tensors between accesses: swap what can be hidden, else what is cheaper.

    Nothing but accesses of tensors counts, no types of ops. A copy in starts as late
    as it ends in time and the limit has room; ops wait for a copy out only where the
    limit would not hold otherwise. What is cheaper to compute again than to wait for is
    computed again, from the nearest tensors that are there.

    Parameters
    ----------
    passive : bool, default False
        Plan the first step, of which no accesses are known before: where bytes are
        missing, what was accessed first leaves, and comes back while its access waits.
    early : mapping of str to float, optional
        By how many seconds copies in start earlier, by tensor; see
        `capuchin_feedback`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is evicted.

    Raises
    ------
    ValueError
        If a passive policy is told what starts earlier, which it does not plan.

    Notes
    -----
    Peng et al., ASPLOS 2020. The order of ops is that of the lowest load. Several
    goals below the limit are planned for, which leave more room to copies in, and the
    fastest schedule is taken that fits once it is placed. What ops would wait longer
    for than computing it again takes is computed again.

    That is a plan of one graph by the seconds that it states. A model that is compiled
    with ``times="measured"`` does all that the paper does: its first step is the
    passive one, which is measured; the next ones are planned by that; and as long as
    ops wait for copies in, `capuchin_feedback` starts these earlier. The plan of the
    fastest steps stays. One that is compiled with a passive policy stays passive.
    """
    if passive and early:
        raise ValueError("a passive capuchin() starts no copy early")
    first = Method("capuchin", _Passive(), swaps=True)
    if passive:
        return first
    guided = Evicting(tuple(sorted((early or {}).items())))
    lessons = Lessons(first, capuchin_feedback)
    return Method("capuchin", guided, swaps=True, learns=lessons)


def capuchin_feedback(
    policy: Policy, graph: Graph, plan: Plan, measured: Simulation
) -> Policy:
    """Return a policy whose copies in start earlier where ops had to wait for them.

    Each that was still coming starts 5 percent of its time earlier than by `policy`.

    Parameters
    ----------
    policy : Policy
        What `capuchin` returned, or this.
    graph : Graph
        The graph that was planned.
    plan : Plan
        The plan that it made.
    measured : Simulation
        What happened, such as ``simulate(graph, plan, bandwidth)`` with the bandwidths
        that were measured.

    Returns
    -------
    Policy
        It, or the same if nothing was late.

    Raises
    ------
    TypeError
        If the policy is not a `capuchin` that is not passive.

    Notes
    -----
    Peng et al., ASPLOS 2020.
    """
    guided = policy.make if isinstance(policy, Method) else None
    if not isinstance(guided, Evicting):
        raise TypeError(f"feedback is for capuchin(), not {policy!r}")
    early = dict(guided.early)
    for each in measured.schedule:
        action = plan.actions[each.action]
        if not isinstance(action, Wait) or each.end <= each.begin:
            continue
        copy = plan.actions[action.action]
        if isinstance(copy, SwapIn):
            tensor, rate = graph.tensors[copy.tensor], rate_of(graph, copy.tier)
            sooner = _SOONER * tensor.nbytes / rate if rate else 0.0
            early[tensor.name] = early.get(tensor.name, 0.0) + sooner
    return capuchin(early=early)
