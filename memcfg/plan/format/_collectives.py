"""Ops of a plan that may run beside compute: collectives, and reads of files.

They run on the queue ``"network"``, in the order of the plan's actions. The seconds of
a collective are those of the graph's link, not of the op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.graph import NOMINAL_LINK
from memcfg.ops.collectives import COLLECTIVES
from memcfg.ops.sections import BESIDE, READS
from memcfg.plan.format._actions import Compute

if TYPE_CHECKING:
    from memcfg.graph import Graph, Op
    from memcfg.plan.format._plan import Plan

NETWORK = "network"  # the queue of ops beside compute
_TYPES = frozenset(BESIDE)


def runs_beside(op: Op) -> bool:
    """Return whether an op may run beside compute, on a queue of its own."""
    return op.type in _TYPES


def is_collective(op: Op) -> bool:
    """Return whether an op is a collective of the ranks of a group."""
    return op.type in COLLECTIVES


def any_beside(graph: Graph) -> bool:
    """Return whether an op of the graph may run beside compute."""
    return any(op.type in _TYPES for op in graph.ops)


def beside_seconds(graph: Graph, op: Op) -> float:
    """Return the seconds of a read, or of a collective on the graph's link.

    The latter are the link's latency and the time of the bytes that a rank sends in the
    algorithms of lowest bandwidth (Thakur et al., "Optimization of Collective
    Communication Operations in MPICH", 2005).
    """
    if op.type in READS:
        return op.seconds
    link = graph.link or NOMINAL_LINK
    rate = link.bytes_per_second
    return link.seconds + (_sent(graph, op) / rate if rate else 0.0)


def sent_bytes(graph: Graph, plan: Plan) -> int:
    """Return the bytes that a rank sends in a step, without tokens."""
    ops = (graph.ops[each.op] for each in plan.actions if isinstance(each, Compute))
    return round(sum(_sent(graph, op) for op in ops if is_collective(op)))


def _sent(graph: Graph, op: Op) -> float:
    """Return the bytes that a rank sends, without tokens.

    In graphs from files, ops have no number of ranks. A part then stands for one
    rank's share of a tensor; where there is no part, the ranks count as many.
    """
    tensors = graph.tensors
    ranks: int | None = op.attributes.get("ranks")
    given = sum(tensors[tensor].nbytes for tensor in op.inputs[1:])
    if op.type == "broadcast":
        return given
    if op.type == "all_reduce":
        return 2 * given * (1 - 1 / ranks if ranks else 1.0)
    whole, part = op.inputs[1:2], op.outputs[1:2]
    if op.type == "all_gather":
        whole, part = part, whole
    all_bytes = sum(tensors[tensor].nbytes for tensor in whole)
    if ranks:
        return all_bytes * (1 - 1 / ranks)
    return max(all_bytes - sum(tensors[tensor].nbytes for tensor in part), 0)
