"""Micro-batches of convolutions whose scratch is limited per op or in total."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg.plan.methods._algorithm_policies import ScratchBudget, most_bytes
from memcfg.plan.methods._knapsack import Option, divide
from memcfg.plan.methods._micro_batches import (
    algorithm_of,
    desirable,
    divide_batch,
    micro_kernels,
)
from memcfg.plan.search.algorithms._scratch import Scratch, base_policy, over_base

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


@dataclass(frozen=True)
class _Reuse:
    """Planning function of WR: ops share one workspace."""

    base: Policy
    workspace_bytes: int | None

    def __call__(self, request: Request) -> Plan:
        scratch = Scratch.of(request, self.base, divided=True)
        chosen = {}
        for op in scratch.rows:
            images, kernels = micro_kernels(request.graph, request.graph.ops[op])
            within = scratch.within(op, self.workspace_bytes)
            fitting = [each for each in kernels if each.algorithm in within]
            most = max((each.scratch_bytes for each in fitting), default=0)
            best = divide_batch(images, fitting, most)
            if best is not None:
                algorithm = algorithm_of(best, fitting)
                if algorithm.seconds <= scratch.now(op).seconds:
                    chosen[op] = algorithm
        return scratch.take(chosen)


@dataclass(frozen=True)
class _Division:
    """Planning function of WD: each op has its own part of the workspace."""

    base: Policy
    workspace_bytes: int | None

    def __call__(self, request: Request) -> Plan:
        budget = ScratchBudget.of(request, self.base, self.workspace_bytes)
        scratch, graph = budget.scratch, request.graph
        rows = {}
        for op, options in budget.options().items():
            images, kernels = micro_kernels(graph, graph.ops[op])
            fitting = [each for each in kernels if each.algorithm in options]
            fronts = [
                algorithm_of(each, fitting) for each in desirable(images, fitting)
            ]
            rows[op] = [scratch.now(op), *(a for a in fronts if a != scratch.now(op))]
        groups = [
            [Option(budget.cost(op, each), each.seconds) for each in row]
            for op, row in rows.items()
        ]
        total = budget.nbytes
        if total is None:
            total = sum(max(option.nbytes for option in group) for group in groups)
        division = divide(groups, total)
        chosen = {
            op: row[number]
            for (op, row), number in zip(rows.items(), division.chosen, strict=True)
        }
        plan = scratch.take(chosen)
        if division.proven or plan.summary is None:
            return plan
        return replace(plan, summary=replace(plan.summary, unproven=True))


def ucudnn_wr(workspace_bytes: int | None = None, base: Policy | None = None) -> Policy:
    """Divide the batch of each convolution for the least time within a workspace.

    This is µ-cuDNN's WR policy, workspace reuse: an op processes parts of the batch in
    sequence, so that faster algorithms fit.

    Parameters
    ----------
    workspace_bytes : int or None, default None
        The largest scratch of an op. It is also limited by the free bytes when the op
        runs, as in `workspace_dynamic`.
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
    Oyama et al. [1]_. The dynamic program is T(n) = min(T(n - b) + t(b)) over the part
    sizes that the device lists, which divide the batch. A weight's gradient is the sum
    over parts and is rounded differently; other results have the bits of the same
    algorithm on the whole batch. An op whose least scratch exceeds `workspace_bytes`
    keeps it.

    References
    ----------
    .. [1] Y. Oyama, T. Ben-Nun, T. Hoefler, S. Matsuoka, "Accelerating Deep Learning
       Frameworks with Micro-Batches", IEEE CLUSTER 2018, arXiv:1804.04806.
    """
    rule = _Reuse(base_policy(base), most_bytes(workspace_bytes))
    return over_base("ucudnn_wr", rule)


def ucudnn_wd(workspace_bytes: int | None = None, base: Policy | None = None) -> Policy:
    """Divide a workspace and the batches of convolutions for the least total time.

    This is µ-cuDNN's WD policy, workspace division: it chooses one of each op's
    desirable (Pareto-optimal) divisions, such that the total scratch fits in the
    workspace.

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
    Oyama et al. [1]_, who solve an integer program; here a dynamic program with bounds
    finds the same optimum without a solver. An op that keeps its algorithm with the
    least scratch uses none of the budget. Since plans place scratch in any free bytes
    of the arena, `ucudnn_wr` needs less memory for the same time.

    References
    ----------
    .. [1] Y. Oyama, T. Ben-Nun, T. Hoefler, S. Matsuoka, "Accelerating Deep Learning
       Frameworks with Micro-Batches", IEEE CLUSTER 2018, arXiv:1804.04806.
    """
    rule = _Division(base_policy(base), most_bytes(workspace_bytes))
    return over_base("ucudnn_wd", rule)
