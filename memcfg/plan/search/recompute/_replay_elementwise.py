"""Recomputation of memory-bound ops: less memory for little time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph import memory_seconds, nominal_seconds_of
from memcfg.ops import op_type, op_types
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._recomputation import plan_recomputation

if TYPE_CHECKING:
    from memcfg.graph import Graph, Op
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def replay_elementwise() -> Policy:
    """Keep the results of convolutions and matrix products; recompute cheap ops.

    Returns
    -------
    Policy
        The policy. Without a limit it looks for the lowest peak; with a limit, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    Batch normalization, activations, sums, pooling, concatenation and similar ops take
    little time relative to the memory of their outputs. These are dropped after their
    last reader in the forward phase and recomputed just before the first backward op
    that needs them: the rule of [1]_ for cheap ops, as in [2]_. An op is cheap if
    neither it nor a part of it sums products (`OpType.contraction`), and its nominal
    time is that of moving its operands' bytes, even if the graph's times are measured.
    So matrix products, convolutions, recurrent cells and ops of unregistered types are
    never recomputed. The choice among the cheap ops is that of `sqrt_checkpoint`, a
    search whose result may not be optimal.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    .. [2] G. Pleiss et al., "Memory-Efficient Implementation of DenseNets", 2017,
       arXiv:1707.06990.
    """
    return Method(
        "replay_elementwise", _replay, "sqrt_checkpoint(), which can recompute any op"
    )


def _replay(request: Request) -> Plan:
    return plan_recomputation(request.replaying(known_cheap_ops(request)))


def known_cheap_ops(request: Request) -> frozenset[int]:
    """Return `cheap_ops` of the request's graph, computed once."""
    return request.once("cheap ops", lambda: cheap_ops(request.graph))


def cheap_ops(graph: Graph) -> frozenset[int]:
    """Return the memory-bound ops: moving their operands takes all of their time."""
    known = _types_without_products()
    return frozenset(
        index
        for index, op in enumerate(graph.ops)
        if op.type in known
        and _nominal(graph, op) <= memory_seconds(_traffic(graph, op))
    )


def _nominal(graph: Graph, op: Op) -> float:
    """Return the nominal seconds of an op, computed if the graph's are measured."""
    if graph.times == "nominal":
        return op.seconds
    return nominal_seconds_of(
        graph, op_type(op.type), op.inputs, op.outputs, op.attributes
    )


def _types_without_products() -> set[str]:
    kinds = op_types()
    products = {kind.name for kind in kinds if kind.contraction}
    parts = {
        kind.name: [kind.name]
        if kind.composite is None
        else [part.type for part in kind.composite.parts]
        for kind in kinds
    }
    return {name for name, each in parts.items() if products.isdisjoint(each)}


def _traffic(graph: Graph, op: Op) -> int:
    return sum([graph.tensors[t].nbytes for t in (*op.inputs, *op.outputs)])
