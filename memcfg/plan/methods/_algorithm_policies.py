"""Which algorithm each op takes, beside the plan of another policy.

M. Rhu et al., "vDNN", MICRO 2016, for all ops alike; L. Wang et al., "SuperNeurons",
PPoPP 2018, by the bytes that are free when an op runs; and, of our own, bytes that all
ops have together, divided by what they save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg._checks import count
from memcfg.plan.search.algorithms._scratch import (
    Fitting,
    Scratch,
    Uniform,
    base_policy,
    over_base,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Algorithm
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


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
        If `base` is not a policy, or has no argument `limit_bytes`.

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
        If `base` is not a policy, or has no argument `limit_bytes`.

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
        If `base` is not a policy, or has no argument `limit_bytes`.

    Notes
    -----
    Wang et al., "SuperNeurons", PPoPP 2018: dynamic workspace allocation. An op that is
    computed again has the algorithm that fits each time, so what it makes has the same
    bits. Other algorithms may round differently.
    """
    return over_base("workspace_dynamic", Fitting(base_policy(base)))


_OTHER = "workspace_dynamic(), which chooses algorithms of less scratch"


def most_bytes(workspace_bytes: int | None) -> int | None:
    """Check a number of bytes, or None; TypeError, ValueError."""
    if workspace_bytes is None:
        return None
    return count(workspace_bytes, "workspace_bytes", 0)


_Options = dict[int, list["Algorithm"]]  # by op


@dataclass(frozen=True)
class ScratchBudget:
    """Bytes that ops have together beside the plan of least scratch.

    An op that keeps its algorithm of least scratch has none of them; any other has all
    of its scratch from them.
    """

    scratch: Scratch
    nbytes: int | None  # None: no bound

    @staticmethod
    def of(request: Request, base: Policy, nbytes: int | None) -> ScratchBudget:
        """Plan with the least scratch; what the limit leaves then is the most."""
        scratch = Scratch.of(request, base, divided=True)
        limit = request.limit_bytes
        if limit is not None:
            left = max(limit - scratch.plan.peak_bytes, 0)
            nbytes = left if nbytes is None else min(nbytes, left)
        return ScratchBudget(scratch, nbytes)

    def cost(self, op: int, algorithm: Algorithm) -> int:
        """Return the bytes that an op takes with an algorithm."""
        return 0 if algorithm == self.scratch.now(op) else algorithm.scratch_bytes

    def options(self) -> _Options:
        """List what each op may take: what it has, and what is faster."""
        return {
            op: [
                each
                for each in rows
                if each == self.scratch.now(op)
                or (
                    each.seconds < self.scratch.now(op).seconds
                    and (self.nbytes is None or each.scratch_bytes <= self.nbytes)
                )
            ]
            for op, rows in self.scratch.rows.items()
        }


@dataclass(frozen=True)
class _Divided:
    """The plan of a rule that divides."""

    rule: Callable[[ScratchBudget], dict[int, Algorithm]]
    base: Policy
    workspace_bytes: int | None

    def __call__(self, request: Request) -> Plan:
        budget = ScratchBudget.of(request, self.base, self.workspace_bytes)
        return budget.scratch.take(self.rule(budget))


def _by_priority(budget: ScratchBudget) -> dict[int, Algorithm]:
    """Give the fastest that is left to one op after the other, longest ones first."""
    options, left = budget.options(), budget.nbytes
    chosen = {}
    for op in sorted(options, key=lambda op: (-budget.scratch.now(op).seconds, op)):
        fitting = [
            each
            for each in options[op]
            if left is None or budget.cost(op, each) <= left
        ]
        chosen[op] = min(fitting, key=lambda each: (each.seconds, each.scratch_bytes))
        left = None if left is None else left - budget.cost(op, chosen[op])
    return chosen


def _by_rate(budget: ScratchBudget) -> dict[int, Algorithm]:
    """Give bytes to whatever saves the most seconds with each, time after time."""
    options, left = budget.options(), budget.nbytes
    chosen = {op: budget.scratch.now(op) for op in options}
    while True:
        best: tuple[float, int, Algorithm] | None = None
        for op, rows in options.items():
            now = chosen[op]
            for each in rows:
                more = budget.cost(op, each) - budget.cost(op, now)
                saves = now.seconds - each.seconds
                if saves <= 0 or (left is not None and more > left):
                    continue
                rate = saves / more if more > 0 else float("inf")
                if best is None or rate > best[0]:
                    best = rate, op, each
        if best is None:
            return chosen
        _, op, each = best
        if left is not None:
            left -= budget.cost(op, each) - budget.cost(op, chosen[op])
        chosen[op] = each


def workspace_priority(
    workspace_bytes: int | None = None, base: Policy | None = None
) -> Policy:
    """Divide bytes of scratch, to the ops that take longest first.

    Each has the fastest algorithm, whole or on parts of the batch, that the bytes left
    by those before it hold.

    Parameters
    ----------
    workspace_bytes : int or None, default None
        What all ops have together; None: what the limit leaves beside the plan of least
        scratch, or all that they want where there is no limit.
    base : Policy or None, default None
        Plans everything else, with the least scratch for each op; None: `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is not a policy, or `workspace_bytes` no whole number.
    ValueError
        If `workspace_bytes` is negative.

    Notes
    -----
    An op that keeps its algorithm of least scratch takes none of the bytes. Other
    algorithms may round differently.
    """
    rule = _Divided(_by_priority, base_policy(base), most_bytes(workspace_bytes))
    return over_base("workspace_priority", rule)


def workspace_balanced(
    workspace_bytes: int | None = None, base: Policy | None = None
) -> Policy:
    """Divide bytes of scratch by the seconds that each saves.

    Time after time the op and the algorithm, whole or on parts of the batch, that save
    the most seconds a byte get what they take.

    Parameters
    ----------
    workspace_bytes : int or None, default None
        As of `workspace_priority`.
    base : Policy or None, default None
        As of `workspace_priority`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is not a policy, or `workspace_bytes` no whole number.
    ValueError
        If `workspace_bytes` is negative.

    Notes
    -----
    `ucudnn_wd` divides the same bytes for the least time of all. Other algorithms may
    round differently.
    """
    rule = _Divided(_by_rate, base_policy(base), most_bytes(workspace_bytes))
    return over_base("workspace_balanced", rule)
