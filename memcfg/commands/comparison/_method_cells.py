"""A method on a network at a budget: what its plan takes at each bandwidth."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.commands.comparison._comparison import copies
from memcfg.commands.comparison._method_facts import FACTS
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.plan import NAMED_POLICIES, Plan, lower_bound, share

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from memcfg.commands._measured import Turns
    from memcfg.commands._tasks import Task
    from memcfg.graph import Graph, Tier

BANDWIDTHS = (math.inf, 8e9, 2e9)  # bytes a second of the first lanes, each way
MIDDLE = BANDWIDTHS.index(8e9)  # the one that is drawn, trained and counted


class Refused(NamedTuple):
    """Why there is no plan, and the bytes that the method needs, if that is why."""

    reason: str
    needs_bytes: int | None
    planning_seconds: float


class Planned(NamedTuple):
    """What a plan takes; the seconds of a step include waits for copies."""

    by: str  # the method of the plan, which may be one that the method chose
    peak_bytes: int
    seconds: float
    stall_seconds: float
    extra_work: float  # seconds computed again, as a fraction of the other ops'
    host_peak_bytes: int
    moved_bytes: int
    lossy: tuple[str, ...]
    planning_seconds: float


@dataclass(frozen=True)
class Case:
    """A network, and what a step takes under `share`, the unit of comparison."""

    letter: str
    task: Task
    graphs: tuple[Graph, ...]  # by bandwidth
    share_peak_bytes: int
    share_seconds: float
    lower_bound_bytes: int
    copies_per_second: float | None  # bytes per second of a lane, if measured

    @staticmethod
    def of(letter: str, task: Task, tiers: Sequence[Tier]) -> Case:
        """Trace a network's step and plan it with `share`.

        The first tier has each of the bandwidths in turn.
        """
        graph = task.graph()
        shared = share()(graph)
        return Case(
            letter=letter,
            task=task,
            graphs=tuple(
                replace(graph, tiers=(_with_rate(tiers[0], rate), *tiers[1:]))
                for rate in BANDWIDTHS
            ),
            share_peak_bytes=shared.peak_bytes,
            share_seconds=shared.elapsed_seconds,
            lower_bound_bytes=lower_bound(graph),
            copies_per_second=copies(graph),
        )

    def limit(self, budget: Fraction) -> int:
        """Return the bytes of a budget, which is a part of the peak of `share`."""
        return max(1, int(budget * self.share_peak_bytes))


@dataclass(frozen=True)
class Cell:
    """What a method takes on a network within a limit."""

    method: str
    case: Case
    budget: Fraction
    outcomes: tuple[Planned | Refused, ...]  # by bandwidth, or one for all
    trained: Turns | None = None  # at the middle bandwidth

    @property
    def limit_bytes(self) -> int:
        """The limit."""
        return self.case.limit(self.budget)

    def outcome(self, at: int = MIDDLE) -> Planned | Refused:
        """Return the outcome of planning for the bandwidth with this index."""
        return self.outcomes[at if len(self.outcomes) > 1 else 0]

    def plan(self, at: int = MIDDLE) -> Planned | None:
        """Return what the plan for a bandwidth takes, or None without a plan."""
        result = self.outcome(at)
        return result if isinstance(result, Planned) else None

    def slowdown(self, at: int = MIDDLE) -> float | None:
        """Return a step's seconds over those of `share`, or None without a plan."""
        result = self.plan(at)
        return None if result is None else result.seconds / self.case.share_seconds

    @property
    def is_as_planned(self) -> bool:
        """Return whether the measured peak was as predicted; None without a run."""
        turns = self.trained
        return turns is None or turns.peak_bytes == turns.predicted_bytes


def _with_rate(tier: Tier, rate: float) -> Tier:
    return replace(tier, bytes_per_second=rate)


def plan_cell(method: str, case: Case, budget: Fraction) -> Cell:
    """Plan for each bandwidth, or once where no tensor can leave the device."""
    limit = case.limit(budget)
    if FACTS[method].swaps:
        each = tuple(_planned(method, graph, limit) for graph in case.graphs)
        return Cell(method, case, budget, each)
    result = _planned(method, case.graphs[0], limit)
    assert isinstance(result, Refused) or not result.moved_bytes, "its facts are wrong"
    return Cell(method, case, budget, (result,))


def _planned(method: str, graph: Graph, limit: int) -> Planned | Refused:
    began = time.perf_counter()
    try:
        plan = NAMED_POLICIES[method]()(graph, limit)
    except MemcfgError as error:
        taken = time.perf_counter() - began
        if isinstance(error, InfeasiblePlanError):
            needs = error.smallest_limit_bytes
            return Refused(f"needs {needs} B", needs, taken)
        return Refused(" ".join(str(error).split()), None, taken)
    return _taken(plan)


def _taken(plan: Plan) -> Planned:
    predicted = plan.predicted
    first = predicted.seconds - predicted.recompute_seconds
    return Planned(
        by=plan.method,
        peak_bytes=plan.peak_bytes,
        seconds=plan.elapsed_seconds,
        stall_seconds=predicted.stall_seconds,
        extra_work=predicted.recompute_seconds / first,
        host_peak_bytes=predicted.host_peak_bytes,
        moved_bytes=predicted.moved_bytes,
        lossy=plan.lossy,
        planning_seconds=predicted.planning_seconds,
    )
