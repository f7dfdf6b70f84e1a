"""What a step takes on each rank if the ranks divide some of its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan.format._collectives import sent_bytes
from memcfg.plan.search._auto import without_gap
from memcfg.plan.search.network._network_bound import network_seconds
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy

__all__ = ["ShardEstimate", "best_of", "fastest", "shard_estimate"]


@dataclass(frozen=True)
class ShardEstimate:
    """Memory and time of a step on each rank, predicted without running it.

    Attributes
    ----------
    shard : str or None
        What the ranks divide, as of `ParallelWrapper`.
    state_bytes : int
        Bytes of weights and optimizer state that a rank holds throughout.
    peak_bytes : int or None
        The peak of a rank; None if no plan fits.
    sent_bytes : int
        Bytes that a rank sends in a step, in algorithms of lowest bandwidth.
    seconds : float
        Predicted seconds of a step, collectives included.
    waiting_seconds : float
        The part of them in which a rank waits for collectives or copies.
    least_waiting_seconds : float
        A lower bound of that for any order of the same ops and collectives, without a
        limit of memory: what the link does not let hide behind compute.
    recompute_seconds : float
        The part of them in which ops are computed again.
    method : str
        What planned the step.
    smallest_limit_bytes : int
        A limit in bytes that suffices; if state alone exceeds the limit, a bound of it;
        0 if the state cannot be divided.
    why_not : str
        Why no plan fits; else empty.
    """

    shard: str | None
    state_bytes: int
    smallest_limit_bytes: int
    peak_bytes: int | None = None
    sent_bytes: int = 0
    seconds: float = 0.0
    waiting_seconds: float = 0.0
    least_waiting_seconds: float = 0.0
    recompute_seconds: float = 0.0
    method: str = ""
    why_not: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is a plan within the limit."""
        return self.peak_bytes is not None


def fastest(rows: Sequence[ShardEstimate]) -> ShardEstimate | None:
    """Return the fastest row that fits, the first of equal ones; None if none does."""
    fitting = [row for row in rows if row.fits]
    return min(fitting, key=lambda row: row.seconds, default=None)


def best_of(rows: Sequence[ShardEstimate]) -> ShardEstimate:
    """Return the fastest row that fits, or that which needs the smallest limit."""
    possible = [row for row in rows if row.smallest_limit_bytes]
    least = min(possible, key=lambda row: row.smallest_limit_bytes)
    return fastest(rows) or least


def shard_estimate(
    shard: str | None, graph: Graph, policy: Policy, limit_bytes: int | None, state: int
) -> ShardEstimate:
    """Plan a rank's step; `state` is the bytes of its state."""
    try:
        plan: Plan = without_gap(policy)(graph, limit_bytes)
    except InfeasiblePlanError as error:
        least = error.smallest_limit_bytes
        return ShardEstimate(shard, state, least, why_not=f"needs {exact(least)}")
    bound = max(0.0, network_seconds(graph) - plan.predicted.seconds)
    return ShardEstimate(
        shard,
        state,
        plan.peak_bytes,
        plan.peak_bytes,
        sent_bytes(graph, plan),
        plan.elapsed_seconds,
        plan.predicted.stall_seconds,
        min(bound, plan.predicted.stall_seconds),
        plan.predicted.recompute_seconds,
        plan.method,
    )
