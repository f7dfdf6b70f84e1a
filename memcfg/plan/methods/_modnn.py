"""The method moDNN: offloading, prefetching and algorithms, together, by budget.

In the manner of Chen, Chen and Hu, "moDNN: Memory Optimal DNN Training on GPUs", DATE
2018; what its abstract promises, by a greedy method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.swaps._trade import plan_trade

if TYPE_CHECKING:
    from memcfg.plan.search._policy import Policy


def modnn() -> Policy:
    """Offload, prefetch and choose algorithms together, for any budget, as moDNN.

    Where the bytes in use are above a goal first, the move is taken that costs the
    least time for its bytes: a value is swapped out around that op, which costs what
    copies cannot hide, or the op gets an algorithm of less scratch. Ops take faster
    ones again where there is room. Goals go down step by step, and the fastest of their
    schedules is taken that fits once it is placed; more memory never takes more time.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Results may differ in last digits from those with other limits, as those
        of algorithms do.

    Notes
    -----
    In the manner of X. Chen et al., DATE 2018 and TPDS 2019, which tune offloading,
    algorithms of convolutions and their sub-batches jointly to a budget; the details
    are not theirs. A sub-batch is a choice where an op has such algorithms. No budget
    below `lower_bound` has a plan; the smallest one that this method plans for lies
    above it by what outputs in place and the placement cost.
    """
    return Method("modnn", plan_trade, swaps=True)
