"""The method moDNN: swaps and algorithms chosen together, for any budget.

After Chen, Chen and Hu, "moDNN: Memory Optimal DNN Training on GPUs", DATE 2018; a
greedy method with the properties that its abstract states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.swaps._trade import plan_trade

if TYPE_CHECKING:
    from memcfg.plan.search._policy import Policy


def modnn() -> Policy:
    """Swap and choose algorithms together, for any budget, as moDNN.

    At the first op where the bytes in use exceed a goal, the method takes the move of
    least time per byte: it swaps a value out around the op, which costs the stall that
    remains, or gives the op an algorithm of less scratch. Afterwards ops get faster
    algorithms where there is room. Goals are lowered step by step; of all schedules,
    the fastest whose plan fits is taken. A larger limit never gives a slower plan.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Since algorithms round differently, results with different limits may
        differ in the last digits.

    Notes
    -----
    After X. Chen et al., DATE 2018 and TPDS 2019, who tune offloading, algorithms of
    convolutions and their sub-batches jointly to a budget; the details are different.
    Sub-batches are chosen where an op has such algorithms. No plan is below
    `lower_bound`; the smallest limit of this method is above it because of in-place
    outputs and placement.
    """
    return Method("modnn", plan_trade, swaps=True)
