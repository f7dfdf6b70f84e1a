"""Memory-efficient attention: what is spread over all keys is not kept but made again.

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
    """Find the cheap ops whose outputs are larger than all that they were spread from.

    That is an op which makes more bytes than it reads, and behind it, those that make
    as many of what such ops made.
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
    """Compute again what additive attention spreads over all keys.

    Sums of keys and a query, and what is made of them element by element, are as large
    as the keys for each step of a decoder. They are computed once more just before the
    backward ops that read them, so that activations grow with the steps and not with
    their square.

    Returns
    -------
    Policy
        The policy: the attention of [1]_. There is one plan for a graph, whatever the
        limit; nothing leaves the device, as by `meng_swap`.

    Notes
    -----
    What is computed again follows from sizes, not from the layer: an op that takes
    little time (see `replay_elementwise`) and makes more bytes than it reads, such as
    one that repeats a query for each key, and the cheap ops behind it that make no
    less. Where all queries of a sequence are one op's, its output is there as a whole
    twice, and only layers share its bytes.

    References
    ----------
    .. [1] C. Meng, M. Sun, J. Yang, M. Qiu, Y. Gu, "Training Deeper Models by GPU
       Memory Optimization on TensorFlow", ML Systems Workshop at NIPS 2017.
    """
    return Method("meng_attention", _plan, "meng_swap(), which swaps")
