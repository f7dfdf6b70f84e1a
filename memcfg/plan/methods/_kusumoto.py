"""The methods of Kusumoto et al. 2019: chains of lower sets, on any graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._core import search
from memcfg.errors import PlanError
from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, forward_ops, segment_moves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_SETS = 2048  # max. lower sets of an exact search
_NODES = 8192  # max. forward ops of a pruned search
_WORK = 40_000_000  # max. pairs of lower sets times units of time, per strategy
_UNITS = 5  # mean units of time per op, as published
_BUDGETS = 24  # budgets of the method's model, from the smallest feasible one


def kusumoto_exact_time() -> Policy:
    """Cut the forward phase into any chain of lower sets, for the least recomputation.

    Returns
    -------
    Policy
        The policy. Without a limit it takes the plan with the lowest peak; with a
        limit, the one with the least recomputation. Memory is shared as by `share`.
        Calls raise PlanError for a graph of more than 2048 lower sets.

    Notes
    -----
    A lower set of forward ops contains with each op all ops that it depends on. A chain
    of lower sets cuts the phase into segments. Tensors that a later segment reads are
    kept; the rest of each segment except the last is recomputed before the segment runs
    backward. A dynamic program over all lower sets finds the strategy of the least
    recomputation under a budget [1]_. Its memory model counts a segment twice, for
    values and gradients, and counts all of the last segment as recomputed. Here the
    strategies of 24 budgets are planned and simulated. Times are rounded to integer
    units, five per op on average, fewer in large graphs; times that are small multiples
    of the shortest are exact.

    References
    ----------
    .. [1] M. Kusumoto, T. Inoue, G. Watanabe, T. Akiba, M. Koyama, "A Graph Theoretic
       Framework of Recomputation Algorithms for Memory-Efficient Backpropagation",
       NeurIPS 2019, arXiv:1905.11722.
    """
    return Method("kusumoto_exact_time", _exact_time, _OTHER)


def kusumoto_exact_memory() -> Policy:
    """Cut the forward phase into any chain of lower sets, for the most recomputation.

    Returns
    -------
    Policy
        The policy. It is like `kusumoto_exact_time`, but under each budget of the model
        it uses the strategy with the most recomputation. Values then end earlier than
        the model assumes, so the peak is often lower.

    References
    ----------
    .. [1] M. Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms
       for Memory-Efficient Backpropagation", NeurIPS 2019, arXiv:1905.11722.
    """
    return Method("kusumoto_exact_memory", _exact_memory, _OTHER)


def kusumoto_pruned_time() -> Policy:
    """Cut the forward phase at the ancestors of ops, for the least recomputation.

    Returns
    -------
    Policy
        The policy. It is like `kusumoto_exact_time` with the published approximation of
        the family of lower sets: one per op, the op and all that it depends on. It may
        miss the best strategy and the smallest budget.

    References
    ----------
    .. [1] M. Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms
       for Memory-Efficient Backpropagation", NeurIPS 2019, arXiv:1905.11722.
    """
    return Method("kusumoto_pruned_time", _pruned_time, _OTHER)


def kusumoto_pruned_memory() -> Policy:
    """Cut the forward phase at the ancestors of ops, for the most recomputation.

    Returns
    -------
    Policy
        The policy. It is like `kusumoto_exact_memory` with the lower sets of
        `kusumoto_pruned_time`.

    References
    ----------
    .. [1] M. Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms
       for Memory-Efficient Backpropagation", NeurIPS 2019, arXiv:1905.11722.
    """
    return Method("kusumoto_pruned_memory", _pruned_memory, _OTHER)


_OTHER = "auto()"


def _exact_time(request: Request) -> Plan:
    return _plan(request, exact=True, longest=False)


def _exact_memory(request: Request) -> Plan:
    return _plan(request, exact=True, longest=True)


def _pruned_time(request: Request) -> Plan:
    return _plan(request, exact=False, longest=False)


def _pruned_memory(request: Request) -> Plan:
    return _plan(request, exact=False, longest=True)


def _plan(request: Request, *, exact: bool, longest: bool) -> Plan:
    nothing = range(len(request.graph.ops))
    rows = [[*nothing]]
    for stages in _strategies(request, exact=exact, longest=longest):
        moves = segment_moves(len(stages))
        rows.append(Chain(request, stages).sequence(moves))
    return plan_cheapest(request, rows)


def _strategies(
    request: Request, *, exact: bool, longest: bool
) -> Iterator[list[list[int]]]:
    """Yield the segments of the best strategy under each budget."""
    graph = request.graph
    ops = forward_ops(graph)
    number = {op: node for node, op in enumerate(ops)}
    before = []
    for op in ops:
        makers = {graph.producer[t] for t in graph.ops[op].inputs}
        before.append(sorted(number[m] for m in makers if m is not None))
    sizes = [sum(graph.aligned_bytes[t] for t in graph.ops[op].outputs) for op in ops]
    most = _SETS if exact else _NODES

    def family(times: list[int]) -> search.LowerSets:
        return search.LowerSets(times, sizes, before, exact=exact, most=most)

    sets = family([0] * len(ops))
    if not sets.complete:
        what = "lower sets" if exact else "forward ops"
        raise PlanError(
            f"{request.method} cannot plan {graph.name!r}: it has more than {most} "
            f"{what}. {'Plan with kusumoto_pruned_time().' if exact else ''}".rstrip()
        )
    budgets = _budgets(sets)
    units = min(_UNITS * len(ops), max(1, _WORK // max(1, sets.pairs)))
    sets = family(_whole_times([graph.ops[op].seconds for op in ops], units))
    for budget in budgets:
        segments = sets.strategy(budget, longest=longest)
        if segments:
            stages: list[list[int]] = [[] for _ in range(max(segments) + 1)]
            for op, segment in zip(ops, segments, strict=True):
                stages[segment].append(op)
            yield stages


def _budgets(family: search.LowerSets) -> list[int]:
    """Return budgets in geometric steps, from the smallest feasible one."""
    low, high = 0, family.whole
    while low < high:
        middle = (low + high) // 2
        if family.feasible(middle):
            high = middle
        else:
            low = middle + 1
    low = max(low, 1)
    ratio = (max(family.whole, low) / low) ** (1 / (_BUDGETS - 1))
    return sorted({low, *(round(low * ratio**k) for k in range(_BUDGETS))})


def _whole_times(seconds: list[float], units: int) -> list[int]:
    """Round times to integers whose sum is at most `units`.

    Ops without times take one unit each. Small multiples of the shortest are exact.
    """
    if not any(seconds):
        seconds = [1.0] * len(seconds)
    shortest = min((s for s in seconds if s > 0), default=1.0)
    multiples = [round(s / shortest) for s in seconds]
    pairs = zip(multiples, seconds, strict=True)
    exact = all(abs(m * shortest - s) <= 1e-9 * s for m, s in pairs)
    if exact and sum(multiples) <= units:
        return multiples
    total = sum(seconds)
    return [int(s / total * units) for s in seconds]
