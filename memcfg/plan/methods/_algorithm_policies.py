"""Choice of each op's algorithm on top of the plan of another policy.

One rule for all ops: M. Rhu et al., "vDNN", MICRO 2016. By the free bytes when an op
runs: L. Wang et al., "SuperNeurons", PPoPP 2018. The policies that divide a budget of
scratch between all ops are memcfg's own.
"""

from __future__ import annotations

import math
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
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Algorithm
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


def workspace_performance(base: Policy | None = None) -> Policy:
    """Use the fastest algorithm of each op, as vDNN (p).

    Parameters
    ----------
    base : Policy or None, default None
        The policy that plans everything else, with the scratch of these algorithms;
        None is `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. The fastest algorithms are known if the model is compiled with
        ``times="measured"``; by nominal times they are the device's defaults.

    Raises
    ------
    TypeError
        If `base` is not a policy, or has no argument `limit_bytes`.

    Notes
    -----
    Rhu et al., "vDNN", MICRO 2016: performance-optimal algorithms. Different algorithms
    may round differently.
    """
    static = Uniform(base_policy(base), memory=False)
    return over_base("workspace_performance", static, _OTHER)


def workspace_memory(base: Policy | None = None) -> Policy:
    """Use the algorithm with the least scratch of each op, as vDNN (m).

    Parameters
    ----------
    base : Policy or None, default None
        The policy that plans everything else, with the scratch of these algorithms;
        None is `share`.

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
    Rhu et al., "vDNN", MICRO 2016: memory-optimal algorithms. Different algorithms may
    round differently.
    """
    static = Uniform(base_policy(base), memory=True)
    return over_base("workspace_memory", static)


def workspace_dynamic(base: Policy | None = None) -> Policy:
    """Use the fastest algorithm whose scratch fits in the free bytes when an op runs.

    Parameters
    ----------
    base : Policy or None, default None
        The policy that plans everything else, with the least scratch for each op; None
        is `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Free bytes are contiguous, unused while the op runs, and below the limit;
        without a limit, all algorithms fit.

    Raises
    ------
    TypeError
        If `base` is not a policy, or has no argument `limit_bytes`.

    Notes
    -----
    Wang et al., "SuperNeurons", PPoPP 2018: dynamic workspace allocation. An op that is
    recomputed uses an algorithm that fits every time, so its results have the same
    bits. Different algorithms may round differently.
    """
    return over_base("workspace_dynamic", Fitting(base_policy(base)))


_OTHER = "workspace_dynamic(), which chooses algorithms of less scratch"


def most_bytes(workspace_bytes: int | None) -> int | None:
    """Return the argument; TypeError or ValueError unless None or a count of bytes."""
    if workspace_bytes is None:
        return None
    return count(workspace_bytes, "workspace_bytes", 0)


_Options = dict[int, list["Algorithm"]]  # by op


@dataclass(frozen=True)
class ScratchBudget:
    """A budget of scratch for all ops together, on top of the plan with least scratch.

    An op that keeps its algorithm with the least scratch uses none of it; other
    algorithms take all of their scratch from the budget.
    """

    scratch: Scratch
    nbytes: int | None  # None: unlimited

    @staticmethod
    def of(request: Request, base: Policy, nbytes: int | None) -> ScratchBudget:
        """Plan with the least scratch; the rest of the limit bounds the budget."""
        scratch = Scratch.of(request, base, divided=True)
        limit = request.limit_bytes
        if limit is not None:
            left = max(limit - scratch.plan.peak_bytes, 0)
            nbytes = left if nbytes is None else min(nbytes, left)
        return ScratchBudget(scratch, nbytes)

    def cost(self, op: int, algorithm: Algorithm) -> int:
        """Return the bytes of the budget that an op uses with an algorithm."""
        return 0 if algorithm == self.scratch.now(op) else algorithm.scratch_bytes

    def options(self) -> _Options:
        """Map each op to its current algorithm and the faster ones that fit."""
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
    """Planning function that divides a scratch budget by a rule."""

    rule: Callable[[ScratchBudget], dict[int, Algorithm]]
    base: Policy
    workspace_bytes: int | None

    def __call__(self, request: Request) -> Plan:
        budget = ScratchBudget.of(request, self.base, self.workspace_bytes)
        return budget.scratch.take(self.rule(budget))


_BUDGETS = 500  # budgets tried below that of a request


def _by_priority(budget: ScratchBudget) -> dict[int, Algorithm]:
    """Choose by priority within any part of the budget, so that the step is fastest.

    With more bytes, a long op may take for a small gain what others would gain more
    from. Invariant: the time never rises with the budget, since all choices that a
    smaller budget has are considered. A budget of what a choice costs gives that choice
    again, so the next one to try is smaller by a byte, or by a step of a fixed grid.
    """
    options = budget.options()
    order = sorted(options, key=lambda op: (-budget.scratch.now(op).seconds, op))
    total = sum(
        max(budget.cost(op, each) for each in budget.scratch.rows[op]) for op in order
    )
    step = 1 + total // _BUDGETS // ALIGNMENT * ALIGNMENT
    most = total if budget.nbytes is None else min(budget.nbytes, total)
    best: dict[int, Algorithm] = {}
    least, left = math.inf, most + -most % step
    while left >= 0:
        chosen = _longest_first(budget, options, order, left)
        cost = sum(budget.cost(op, each) for op, each in chosen.items())
        seconds = math.fsum(each.seconds for each in chosen.values())
        if cost <= most and seconds < least:
            best, least = chosen, seconds
        left = (cost - 1) // step * step
    return best


def _longest_first(
    budget: ScratchBudget, options: _Options, order: Sequence[int], left: int
) -> dict[int, Algorithm]:
    """Choose the fastest algorithm that fits in what is left, op after op."""
    chosen = {}
    for op in order:
        fitting = [each for each in options[op] if budget.cost(op, each) <= left]
        chosen[op] = min(fitting, key=lambda each: (each.seconds, each.scratch_bytes))
        left -= budget.cost(op, chosen[op])
    return chosen


def _by_rate(budget: ScratchBudget) -> dict[int, Algorithm]:
    """Repeatedly make the change that saves the most seconds per byte.

    The time never rises with the budget: rates only fall, so a change that a smaller
    budget has no room for saves more than all that would follow there.
    """
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
    """Divide a scratch budget between ops, the longest op first.

    Each op gets the fastest algorithm, on the whole batch or on parts of it, whose
    scratch fits in the bytes that the ops before it have left. If the step is faster
    when a part of the budget is divided like that, only this part is.

    Parameters
    ----------
    workspace_bytes : int or None, default None
        The budget of all ops together. None is what the limit leaves after the plan
        with the least scratch; without a limit it is unlimited.
    base : Policy or None, default None
        The policy that plans everything else, with the least scratch for each op; None
        is `share`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is not a policy, or `workspace_bytes` is not an integer.
    ValueError
        If `workspace_bytes` is negative.

    Notes
    -----
    An op that keeps its algorithm with the least scratch uses none of the budget. With
    a base whose plans do not depend on the limit, such as `share`, a larger limit never
    makes the step slower. Different algorithms may round differently.
    """
    rule = _Divided(_by_priority, base_policy(base), most_bytes(workspace_bytes))
    return over_base("workspace_priority", rule)


def workspace_balanced(
    workspace_bytes: int | None = None, base: Policy | None = None
) -> Policy:
    """Divide a scratch budget between ops by the seconds saved per byte.

    The policy repeatedly chooses the op and algorithm, on the whole batch or on parts
    of it, that save the most seconds per byte.

    Parameters
    ----------
    workspace_bytes : int or None, default None
        See `workspace_priority`.
    base : Policy or None, default None
        See `workspace_priority`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    TypeError
        If `base` is not a policy, or `workspace_bytes` is not an integer.
    ValueError
        If `workspace_bytes` is negative.

    Notes
    -----
    `ucudnn_wd` divides the same budget for the least total time. Different algorithms
    may round differently.
    """
    rule = _Divided(_by_rate, base_policy(base), most_bytes(workspace_bytes))
    return over_base("workspace_balanced", rule)
