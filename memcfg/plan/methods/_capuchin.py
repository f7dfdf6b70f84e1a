"""Capuchin: swapping and recomputation guided by tensor accesses.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
2020. `memcfg.plan.search.swaps._evict` implements the guided choices. This module adds
the passive first step, which does not know future accesses, and the feedback.
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


_ROUNDS = 12  # goals of a first step, each lower by what the placement exceeded
_SOONER = 0.05  # fraction of a copy's seconds by which feedback shifts it


@dataclass(frozen=True)
class _Passive:
    """Planning function of the first step, in which no accesses are known."""

    def __call__(self, request: Request) -> Plan:
        """Plan with evictions when bytes are missing and swap-ins on access."""
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
            if passive.most > goal or request.is_over():  # nothing more can be evicted
                break
            goal -= plan.peak_bytes - limit
        least = Passive(trace, 0)
        least.events()
        plan = plan_events(request, Passive(trace, least.most).events())
        return within_tier(request, plan)


def capuchin(
    *, passive: bool = False, early: Mapping[str, float] | None = None
) -> Policy:
    """Evict tensors between accesses by hidden swaps, or by the cheaper alternative.

    Only the accesses of tensors matter, not the types of ops. A copy in starts as late
    as possible to end in time, if the limit has room. Ops wait for a copy out only if
    the limit would be exceeded otherwise. A tensor is recomputed, from the nearest
    resident tensors, if that takes less time than waiting for its copy.

    Parameters
    ----------
    passive : bool, default False
        Plan the first step, in which future accesses are unknown: when bytes are
        missing, the oldest tensors are evicted, and an access of an evicted tensor
        waits for its copy in.
    early : mapping of str to float, optional
        Seconds by which copies in start earlier, by tensor name; see
        `capuchin_feedback`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is evicted.

    Raises
    ------
    ValueError
        If both `passive` and `early` are given.

    Notes
    -----
    Peng et al., ASPLOS 2020. Ops run in the order with the lowest load. The policy
    plans for several goals below the limit, which leave more room for copies in, and
    takes the fastest schedule whose plan fits.

    A policy plans one graph by its times. A model compiled with ``times="measured"``
    follows the whole paper: the first step is passive and measured, the next ones are
    planned from the measurement, and while ops wait for copies in, `capuchin_feedback`
    starts them earlier. The plan with the fastest steps is kept. A model compiled with
    a passive policy stays passive.
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
    """Return a policy that starts copies in earlier if ops had to wait for them.

    Each late copy starts 5 % of its duration earlier than under `policy`.

    Parameters
    ----------
    policy : Policy
        A policy that `capuchin` or this function returned.
    graph : Graph
        The planned graph.
    plan : Plan
        The plan of `policy`.
    measured : Simulation
        The schedule of a step, such as ``simulate(graph, plan, bandwidth)`` with
        measured bandwidths.

    Returns
    -------
    Policy
        The new policy, equal to `policy` if no copy was late.

    Raises
    ------
    TypeError
        If `policy` is not from `capuchin`, or is passive.

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
    """Passive eviction while the ops of a trace run, each once."""

    def __init__(self, trace: Trace, goal: int) -> None:
        self.trace = trace
        self.goal = goal
        self.most = 0  # peak of bytes in use; above the goal if nothing can be evicted
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
        """Run the ops and return the events."""
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
        """Return the values to evict: the oldest large enough, else the oldest few."""
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
        if number in self._copied:  # the tier still has its copy
            return []
        self._copied.add(number)
        tensor = self.trace.values[number].tensor
        return [StartSwapOut(tensor), EndSwapOut(tensor)]

    def _come(self, number: int) -> None:
        self._there.add(number)
        self._used += self._sizes[number]

    def _end(self, place: int) -> None:
        """Add the values that an op produced, and drop those without later reads."""
        for number in self.trace.made(place):
            self._come(number)
        for number in {*self.trace.read(place), *self.trace.made(place)}:
            value = self.trace.values[number]
            if not value.stays and max((value.begin, *value.reads)) == place:
                self._there.discard(number)
                self._used -= self._sizes[number]
