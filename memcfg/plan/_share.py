"""_Range that is free again is used again, and outputs take the place of inputs.

Owns the policy `share`. Refuses to recompute or to change the order of the ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan._lifetimes import Request, effort, make_step, nothing_dropped
from memcfg.plan._policy import fits, refuse

if TYPE_CHECKING:
    from memcfg._core import search
    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["Share", "lowest_layout", "share"]

_EQUAL, _SMALLER_TOO = 1, 2  # in-place rules


@dataclass(frozen=True)
class Share:
    """The policy that `share` makes."""

    name: str = "share"

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan a graph; see `Policy`."""
        request = Request.of(graph, self.name, limit_bytes)
        graph = request.graph
        layout = lowest_layout(graph, make_step(graph), nothing_dropped(graph))
        plan = request.plan_of(layout)
        if not fits(plan):
            raise refuse(plan, other="auto(), which can recompute")
        return plan


def share() -> Share:
    """Reuse buffer: liveness, legal in-place pairs and offset placement.

    Returns
    -------
    Share
        The policy. A tensor has a buffer from the op that makes it to its last reader;
        an output takes over the buffer of an input of the same size when the op
        declares the pair and is the input's last reader; offsets come from the best
        of several orders.

    References
    ----------
    .. [1] T. Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library
       for Heterogeneous Distributed Systems", 2015, arXiv:1512.01274.
    """
    return Share()


def lowest_layout(graph: Graph, step: search.Step, dropped: bytes) -> search.Layout:
    """Place a choice; where smaller outputs could go in place, both ways."""
    work = effort(graph)
    layouts = [step.layout(dropped, rule=_EQUAL, effort=work)]
    if _has_smaller_output(graph):
        layouts.append(step.layout(dropped, rule=_SMALLER_TOO, effort=work))
    return min(layouts, key=lambda layout: layout.height)


def _has_smaller_output(graph: Graph) -> bool:
    sizes = [tensor.nbytes for tensor in graph.tensors]
    return any(sizes[i] > sizes[o] for op in graph.ops for i, o in op.in_place)
