"""Capuchin: what leaves or is computed again, by accesses of tensors alone.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
2020. Its choices are those of `memcfg.plan.search.swaps._evict`; here are its first
step, which knows nothing of the ops to come, and its feedback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import SwapIn, Wait
from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Lessons, Method, fits
from memcfg.plan.search.swaps._event_times import rate_of
from memcfg.plan.search.swaps._evict import Evicting, start_of, unevicted
from memcfg.plan.search.swaps._swap_events import (
    EndSwapIn,
    EndSwapOut,
    Event,
    Run,
    StartSwapIn,
    StartSwapOut,
    plan_events,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.format._simulate import Simulation
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.swaps._accesses import Trace


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


class Passive:
    """The bytes of a device while the ops of a trace run, each once."""

    def __init__(self, trace: Trace, goal: int) -> None:
        self.trace = trace
        self.goal = goal
        self.most = 0  # bytes in use at a time; above the goal where nothing may leave
        self._sizes = [trace.sizes[value.tensor] for value in trace.values]
        self._there = {
            number
            for number, value in enumerate(trace.values)
            if value.begin < 0 and (value.reads or value.stays)
        }
        self._copied: set[int] = set()
        self._taken = trace.taken()
        self._used = trace.state_bytes + sum(self._sizes[n] for n in self._there)

    def events(self) -> list[Event]:
        """Run them."""
        result: list[Event] = []
        for place, (_, op) in enumerate(self.trace.entries):
            read = self.trace.read(place)
            missing = [n for n in read if n not in self._there]
            made = [n for n in self.trace.made(place) if n not in self._taken]
            scratch = self.trace.graph.aligned_scratch[op]
            need = sum(self._sizes[n] for n in (*missing, *made)) + scratch
            for number in self._leaving(need, place, read):
                result += self._evict(number)
            for number in missing:
                tensor = self.trace.values[number].tensor
                result += [StartSwapIn(tensor), EndSwapIn(tensor)]
                self._come(number)
            result.append(Run(op))
            self.most = max(self.most, self._used + need - self._bytes(missing))
            self._end(place)
        return result

    def _bytes(self, numbers: Collection[int]) -> int:
        return sum(self._sizes[number] for number in numbers)

    def _leaving(self, need: int, place: int, read: Collection[int]) -> list[int]:
        """List what leaves: the first that is large enough, else from the first on."""
        over = self._used + need - self.goal
        if over <= 0:
            return []
        free = [n for n in sorted(self._there) if n not in read and self._may_leave(n)]
        for number in free:
            if self._sizes[number] >= over:
                return [number]
        result = []
        for number in free:
            if over > 0:
                result.append(number)
                over -= self._sizes[number]
        return result

    def _may_leave(self, number: int) -> bool:
        return bool(self._sizes[number]) and self.trace.may_leave(number)

    def _evict(self, number: int) -> list[Event]:
        self._there.remove(number)
        self._used -= self._sizes[number]
        if number in self._copied:  # its copy is still there
            return []
        self._copied.add(number)
        tensor = self.trace.values[number].tensor
        return [StartSwapOut(tensor), EndSwapOut(tensor)]

    def _come(self, number: int) -> None:
        self._there.add(number)
        self._used += self._sizes[number]

    def _end(self, place: int) -> None:
        """End what nothing reads any more, and begin what was made."""
        for number in self.trace.made(place):
            self._come(number)
        for number in {*self.trace.read(place), *self.trace.made(place)}:
            value = self.trace.values[number]
            if not value.stays and max((value.begin, *value.reads)) == place:
                self._there.discard(number)
                self._used -= self._sizes[number]
