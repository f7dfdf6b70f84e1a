"""Memory-efficient attention: tensors that are broadcast over keys are recomputed.

Meng, Sun, Yang, Qiu and Gu, "Training Deeper Models by GPU Memory Optimization on
TensorFlow", ML Systems Workshop at NIPS 2017.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def spread_ops(request: Request) -> set[int]:
    """Return the cheap ops whose outputs were broadcast from smaller tensors.

    These are ops that write more bytes than they read, and ops that read such outputs
    and write at least as many bytes.
    """
    graph = request.graph
    size = [tensor.nbytes for tensor in graph.tensors]
    cheap = cheap_ops(graph).intersection(request.droppable, request.repeatable)
    spread: set[int] = set()  # tensors
    result: set[int] = set()
    for index in sorted(cheap):
        op = graph.ops[index]
        read = {*op.inputs}
        made = sum(size[t] for t in op.outputs)
        wide = max((size[t] for t in read & spread), default=0)
        if read and (made > sum(size[t] for t in read) or made >= wide > 0):
            result.add(index)
            spread.update(op.outputs)
    return result


def _plan(request: Request) -> Plan:
    spread = spread_ops(request)
    dropped = bytes(index in spread for index in range(len(request.graph.ops)))
    return request.placed_in_order(dropped)


def meng_attention() -> Policy:
    """Recompute the tensors that additive attention broadcasts over all keys.

    For each decoder step, the sum of keys and a query and its element-wise results are
    as large as the keys. They are recomputed just before the backward ops that read
    them, so activations grow linearly instead of quadratically with the steps.

    Returns
    -------
    Policy
        The policy: the attention of [1]_. A graph has one plan, whatever the limit.
        Tensors are not swapped; see `meng_swap`.

    Notes
    -----
    Ops are chosen by size, not by layer: cheap ops (see `replay_elementwise`) that
    write more bytes than they read, such as one that repeats a query for each key, and
    cheap ops after them whose outputs are at least as large. If one op computes all
    queries of a sequence, its whole output is recomputed, and bytes are only shared
    between layers.

    References
    ----------
    .. [1] C. Meng, M. Sun, J. Yang, M. Qiu, Y. Gu, "Training Deeper Models by GPU
       Memory Optimization on TensorFlow", ML Systems Workshop at NIPS 2017.
    """
    return Method("meng_attention", _plan, "meng_swap(), which swaps")
