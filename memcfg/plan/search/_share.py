"""Reuse of free memory and in-place outputs, without recomputation or swaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def share() -> Policy:
    """Reuse memory: order, liveness, legal in-place pairs and offset placement.

    Returns
    -------
    Policy
        The policy. A tensor has a buffer from the op that computes it to its last
        reader. An output takes over the buffer of an input of the same size, or of a
        larger one if that lowers the peak, if the op declares the pair and is the
        input's last reader. Offsets come from a search. Ops are reordered if an order
        with a lower peak than the graph's is found.

    References
    ----------
    .. [1] T. Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library
       for Heterogeneous Distributed Systems", 2015, arXiv:1512.01274.
    """
    return Method("share", _share, "auto(), which can recompute")


def _share(request: Request) -> Plan:
    return request.placed_in_order(bytes(len(request.graph.ops)))  # nothing is dropped
