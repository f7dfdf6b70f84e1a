"""Which algorithm each op takes, beside the plan of another policy.

M. Rhu et al., "vDNN", MICRO 2016, for all ops alike; L. Wang et al., "SuperNeurons",
PPoPP 2018, by the bytes that are free when an op runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search.algorithms._scratch import (
    Fitting,
    Uniform,
    base_policy,
    over_base,
)

if TYPE_CHECKING:
    from memcfg.plan.search._policy import Policy


def workspace_performance(base: Policy | None = None) -> Policy:
    """Take the fastest algorithm of each op, vDNN's (p).

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the scratch of these algorithms; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Which algorithm is the fastest is known of a model that is compiled with
        ``times="measured"``; by nominal times it is the device's default.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Rhu et al., "vDNN", MICRO 2016: performance-optimal algorithms. Algorithms may round
    differently.
    """
    static = Uniform(base_policy(base), memory=False)
    return over_base("workspace_performance", static, _OTHER)


def workspace_memory(base: Policy | None = None) -> Policy:
    """Take the algorithm of least scratch of each op, vDNN's (m).

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the scratch of these algorithms; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Rhu et al., "vDNN", MICRO 2016: memory-optimal algorithms. Algorithms may round
    differently.
    """
    static = Uniform(base_policy(base), memory=True)
    return over_base("workspace_memory", static)


def workspace_dynamic(base: Policy | None = None) -> Policy:
    """Take the fastest algorithm that the bytes hold which are free as an op runs.

    Parameters
    ----------
    base : Policy or None, default None
        Plans everything else, with the least scratch for each op; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Free is what nothing else has at that moment, in one piece, below the
        limit; without one, all algorithms fit.

    Raises
    ------
    TypeError
        If `base` is no policy, or has no argument `limit_bytes`.

    Notes
    -----
    Wang et al., "SuperNeurons", PPoPP 2018: dynamic workspace allocation. An op that is
    computed again has the algorithm that fits each time, so what it makes has the same
    bits. Other algorithms may round differently.
    """
    return over_base("workspace_dynamic", Fitting(base_policy(base)))


_OTHER = "workspace_dynamic(), which chooses algorithms of less scratch"
