"""At most two retention intervals per value, after Bartan et al. 2023."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.methods._checkmate import plan_stages
from memcfg.plan.search._policy import Method

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_INTERVALS = 2  # per value, as published


def retention_intervals() -> Policy:
    """Keep each value during at most two intervals, by integer programming.

    Returns
    -------
    Policy
        The policy. Without a limit it minimizes the peak; with a limit, recomputation
        within it. Calls raise MissingDependencyError without HiGHS (``pip install
        highspy``), and PlanError for a graph of more than 48 ops.

    Notes
    -----
    A value is in memory from each computation to its last read before the next
    computation, and no op runs more than twice. At any time the sizes of the current
    intervals must not exceed the limit, as in MOCCASIN [1]_. MOCCASIN is a constraint
    program with 2 n integer variables for the ends of intervals. Here HiGHS solves the
    program of `checkmate`, with n binary variables per value for the starts of
    intervals, so the method is for smaller graphs. The grid of times is the same.

    References
    ----------
    .. [1] B. Bartan et al., "MOCCASIN: Efficient Tensor Rematerialization for Neural
       Networks", ICML 2023, arXiv:2304.14463.
    """
    return Method("retention_intervals", _retention_intervals, "auto()")


def _retention_intervals(request: Request) -> Plan:
    return plan_stages(request, times=_INTERVALS)
