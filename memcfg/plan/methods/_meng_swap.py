"""Swapping of the feature maps farthest from the loss, with triggered copies in.

Meng, Sun, Yang, Qiu and Gu, "Training Deeper Models by GPU Memory Optimization on
TensorFlow", ML Systems Workshop at NIPS 2017.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.methods._swapping import Away, away_tiers, events_of
from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search.swaps._event_times import swap_out_seconds
from memcfg.plan.search.swaps._swap_events import (
    Event,
    StartSwapOut,
    least_load,
    plan_events,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_TRIGGERS = ("in_time", "at_once", "on_demand")
# Unless ops wait for copies in, these start right after the copies out on a slow lane,
# and the smallest limit depends on the bandwidth.
_WAITS = ("no", "leaving", "both")  # copies that ops wait for, as the limit requires


class _Map(NamedTuple):
    """A feature map with positions in the order of the ops."""

    tensor: int
    nbytes: int
    begin: int  # the last forward op that reads it, else the op after its producer
    first: int  # the first later op that reads it


class _Lane(NamedTuple):
    """The tier of a map, and the seconds of a copy to it."""

    tier: str
    seconds: float


@dataclass(frozen=True)
class _Swapper:
    """Planning function for one kind of trigger; a value, for comparison."""

    trigger: str

    def __post_init__(self) -> None:
        if self.trigger not in _TRIGGERS:
            known = ", ".join(map(repr, _TRIGGERS))
            raise ValueError(f"trigger must be one of {known}, not {self.trigger!r}")

    def __call__(self, request: Request) -> Plan:
        """Swap as few maps as possible, the earliest ones, by bisection."""
        nothing = self.planned(request, [])
        if fits(nothing):
            return nothing
        limit = request.limit_bytes
        assert limit is not None
        maps = _feature_maps(request)
        unplaced: list[list[Event]] = []
        lowest = nothing
        for waits in _WAITS:
            result = None
            low, high = 0, len(maps) + 1  # `low` maps do not fit; `high` may
            while high - low > 1 and not request.is_over():
                middle = (low + high) // 2
                events = self.events(request, maps[:middle], waits=waits)
                if least_load(request, events) > limit:
                    unplaced.append(events)
                    low = middle
                    continue
                plan = plan_events(request, events)
                lowest = min(lowest, plan, key=lambda each: each.peak_bytes)
                if fits(plan):
                    result, high = plan, middle
                else:
                    low = middle
            if result is not None:
                return within_tier(request, result)
        if request.is_over():
            least = self.planned(request, maps, waits=_WAITS[-1])
            lowest = min(lowest, least, key=lambda each: each.peak_bytes)
            if fits(lowest):
                return within_tier(request, lowest)
        elif request.below == math.inf:
            plans = [plan_events(request, events) for events in unplaced]
            lowest = min([lowest, *plans], key=lambda each: each.peak_bytes)
        return lowest

    def planned(
        self, request: Request, maps: Sequence[_Map], *, waits: str = _WAITS[0]
    ) -> Plan:
        """Return the plan in which these maps are swapped; see `events`."""
        return plan_events(request, self.events(request, maps, waits=waits))

    def events(
        self, request: Request, maps: Sequence[_Map], *, waits: str = _WAITS[0]
    ) -> list[Event]:
        """Return the events of a step in which these maps are swapped between uses.

        With waits "no", bytes are free when the estimated copy out has ended; with
        "leaving", the next op waits for it. On a slow lane, copies in may start so
        early that no bytes become free; with "both", each starts only when needed, so
        the smallest limit does not depend on bandwidth.
        """
        graph = request.graph
        ends = [*accumulate(op.seconds for op in graph.ops)]
        starts = [0.0, *ends[:-1]]
        lanes = _lanes(graph, maps)
        leaves = _leaves(maps, starts, lanes)
        if waits != "no":
            leaves = {each.tensor: each.begin + 1 for each in maps}
        wanted = [each for each in maps if leaves[each.tensor] < each.first]
        arrives = self._arrives(wanted, starts, lanes, _first_backward(request))
        if waits == "both":
            arrives = {each.tensor: each.first for each in maps}
        return events_of(
            range(len(graph.ops)),
            [
                Away(
                    each.tensor,
                    each.begin,
                    leaves[each.tensor],
                    max(arrives[each.tensor], leaves[each.tensor]),
                    each.first,
                )
                for each in wanted
            ],
        )

    def _arrives(
        self,
        maps: Sequence[_Map],
        starts: list[float],
        lanes: Mapping[int, _Lane],
        backward: int,
    ) -> dict[int, int]:
        """Map each tensor to the op before which its copy in starts."""
        result: dict[int, int] = {}
        # By tier: the time at which the lane must be free for later copies.
        frees: dict[str, float] = defaultdict(lambda: math.inf)
        for each in sorted(maps, key=lambda each: -each.first):
            if self.trigger == "on_demand":
                result[each.tensor] = each.first
            elif self.trigger == "at_once":
                result[each.tensor] = min(backward, each.first)
            else:  # the latest op that starts early enough
                tier, seconds = lanes[each.tensor]
                free = min(frees[tier], starts[each.first]) - seconds
                frees[tier] = free
                place = each.first
                while place > each.begin + 1 and starts[place] > free:
                    place -= 1
                result[each.tensor] = place
        return result


def _feature_maps(request: Request) -> list[_Map]:
    """Return the tensors that forward produces and backward reads, in order."""
    graph = request.graph
    phases = [op.phase for op in graph.ops]
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    result = []
    for tensor, readers in enumerate(graph.consumers):
        maker = graph.producer[tensor]
        if tensor in fixed or maker is None or phases[maker] != "forward":
            continue
        ahead = [op for op in readers if phases[op] == "forward"]
        later = [op for op in readers if phases[op] != "forward"]
        begin = max(ahead, default=maker + 1)
        if later and begin + 1 < min(later):
            nbytes = graph.tensors[tensor].nbytes
            result.append((maker, _Map(tensor, nbytes, begin, min(later))))
    return [each for _, each in sorted(result)]


def _first_backward(request: Request) -> int:
    phases = [op.phase for op in request.graph.ops]
    return phases.index("backward") if "backward" in phases else len(phases)


def _lanes(graph: Graph, maps: Sequence[_Map]) -> dict[int, _Lane]:
    """Map each tensor to its tier and the seconds of a copy."""
    away = [
        Away(each.tensor, each.begin, each.begin + 1, each.first, each.first)
        for each in maps
    ]
    result = {}
    for tensor, tier in away_tiers(graph, away).items():
        seconds = swap_out_seconds(graph, StartSwapOut(tensor, tier=tier))
        result[tensor] = _Lane(tier, seconds)
    return result


def _leaves(
    maps: Sequence[_Map], starts: list[float], lanes: Mapping[int, _Lane]
) -> dict[int, int]:
    """Map each tensor to the op before which its copy out has ended.

    Copies of a lane run in sequence.
    """
    result: dict[int, int] = {}
    frees: dict[str, float] = defaultdict(float)
    for each in sorted(maps, key=lambda each: each.begin):
        tier, seconds = lanes[each.tensor]
        free = frees[tier] = max(frees[tier], starts[each.begin]) + seconds
        place = each.begin + 1
        while place < each.first and starts[place] < free:
            place += 1
        result[each.tensor] = place
    return result


def meng_swap(trigger: str = "in_time") -> Policy:
    """Swap out the earliest feature maps, as few as the limit requires.

    Maps near the loss stay on the device. A map is copied out at its last use in the
    forward phase, and its bytes are free when the copy has ended. Ops wait for that
    only if the limit would be exceeded otherwise, as on a slow lane.

    Parameters
    ----------
    trigger : {"in_time", "at_once", "on_demand"}, default "in_time"
        When a copy in starts: as late as possible to end before the use, by estimated
        times; at the start of the backward phase; or at the use.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is swapped.

    Raises
    ------
    ValueError
        If `trigger` is none of these.

    Notes
    -----
    Meng et al., ML Systems Workshop at NIPS 2017. Times are estimated for ops in the
    graph's order, and for copies in sequence on each lane.
    """
    return Method("meng_swap", _Swapper(trigger), swaps=True)
