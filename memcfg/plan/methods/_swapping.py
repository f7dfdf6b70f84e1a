"""Schedules in which tensors are swapped out and in once, between given ops."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.format._tier_choice import likely_tiers, tiers_of
from memcfg.plan.search.swaps._event_times import life_of
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
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request


class Away(NamedTuple):
    """A tensor's time on a tier, by positions in a schedule.

    No op in [leave, back) reads the tensor.
    """

    tensor: int
    begin: int  # the copy out starts before this op, which may read the tensor
    leave: int  # the copy out has ended before this op: the bytes are free
    arrive: int  # the copy in starts before this op
    back: int  # the copy in has ended before this op


def plan_swaps(request: Request, sequence: Sequence[int], away: Iterable[Away]) -> Plan:
    """Return the plan of a schedule that computes each op once, with these copies.

    Parameters
    ----------
    request : Request
        The request.
    sequence : sequence of int
        All ops of the graph, in order.
    away : iterable of Away
        The swapped tensors, each at most once.
    """
    return plan_events(request, events_of(sequence, away))


def events_of(sequence: Sequence[int], away: Iterable[Away]) -> list[Event]:
    """Return the events of a schedule with copies.

    Before an op, copies out end first, then copies in start and end, then copies out
    start.
    """
    before: dict[int, list[list[Event]]] = defaultdict(lambda: [[], [], [], []])
    for tensor, begin, leave, arrive, back in away:
        before[leave][0].append(EndSwapOut(tensor))
        before[arrive][1].append(StartSwapIn(tensor))
        before[back][2].append(EndSwapIn(tensor))
        before[begin][3].append(StartSwapOut(tensor))
    events: list[Event] = []
    for place, op in enumerate(sequence):
        events += chain.from_iterable(before[place])
        events.append(Run(op))
    return events


def away_tiers(graph: Graph, away: Sequence[Away]) -> dict[int, str]:
    """Return the tier of each swapped tensor."""
    lives = []
    for tensor, begin, _, _, back in away:
        lives.append(life_of(graph, StartSwapOut(tensor), begin, back))
    names = likely_tiers(tiers_of(graph), lives)
    return {each.tensor: name for each, name in zip(away, names, strict=True)}
