"""Two intervals of residence a value at most, in the manner of Bartan et al. 2023."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.methods._checkmate import plan_stages
from memcfg.plan.search._policy import Method

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_INTERVALS = 2  # of a value, as published


def retention_intervals() -> Policy:
    """Keep each value over two intervals at most, by integer programming.

    Returns
    -------
    Policy
        The policy. Without a limit it plans for the least peak; with one, for the
        least recomputation within it. It raises MissingDependencyError without HiGHS
        (``pip install highspy``), and PlanError for a graph of more than 48
        ops.

    Notes
    -----
    A value is in memory from its computation to the last read before the next one, and
    no op runs more than twice; the sizes of the intervals that cover a moment add up to
    the limit at most, as in MOCCASIN [1]_. There the ends of intervals are integers of
    a constraint program, 2 n of each; here, on HiGHS, an interval begins where a column
    of `checkmate` says so, n for each value, so the method is for smaller graphs. The
    grid of moments is the same.

    References
    ----------
    .. [1] B. Bartan et al., "MOCCASIN: Efficient Tensor Rematerialization for Neural
       Networks", ICML 2023, arXiv:2304.14463.
    """
    return Method("retention_intervals", _retention_intervals, "auto()")


def _retention_intervals(request: Request) -> Plan:
    return plan_stages(request, times=_INTERVALS)
