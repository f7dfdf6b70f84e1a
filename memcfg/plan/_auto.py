"""The fastest method that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.errors import InfeasiblePlanError
from memcfg.plan._share import share
from memcfg.plan._sqrt_checkpoint import sqrt_checkpoint

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy


@dataclass(frozen=True)
class Auto:
    """The policy that `auto` makes."""

    name: str = "auto"

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        try:
            plan = share()(graph, limit_bytes)
        except InfeasiblePlanError:
            plan = sqrt_checkpoint()(graph, limit_bytes)  # needs `share`'s at most
        assert plan.summary is not None
        return replace(plan, summary=replace(plan.summary, chosen_by="auto"))


def auto() -> Policy:
    """Take the fastest of `keep_all`, `share` and `sqrt_checkpoint` that fits.

    Returns
    -------
    Policy
        The policy. It prefers the least predicted time, then the fewest computed
        ops (which decides where a graph states no times), then the smaller peak.

    Notes
    -----
    `keep_all` and `share` compute every op once, so nothing is faster, and the peak
    of `share` is the smaller one: it is taken when it fits. `sqrt_checkpoint`, which
    takes the least recomputation that fits, is tried when it does not.
    """
    return Auto()
