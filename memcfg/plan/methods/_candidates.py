"""Choice among a method's schedules, which differ in how much they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import fits
from memcfg.plan.search.recompute._recomputation import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request


_SLOTS = 32  # numbers of slots that a method tries


def plan_cheapest(request: Request, sequences: Iterable[Sequence[int]]) -> Plan:
    """Return the plan with the least recomputation that fits.

    If none fits, or there is no limit, return that with the lowest peak. So the
    smallest limit in the error is exact for these schedules.
    """
    rows = dict.fromkeys(tuple(request.arranged(sequence)) for sequence in sequences)
    candidates = [Candidate.of(request.step, row) for row in rows]
    limit = request.limit_bytes
    if limit is not None:
        fitting = [each for each in candidates if each.load <= limit]
        for each in sorted(fitting, key=lambda c: (c.cost, c.again, c.load)):
            plan = request.scheduled(each.sequence)
            if fits(plan):
                return plan
    best: Plan | None = None
    for each in sorted(candidates, key=lambda c: (c.load, c.cost, c.again)):
        if best is not None and each.load >= best.peak_bytes:
            break
        plan = request.scheduled(each.sequence)
        if best is None or plan.peak_bytes < best.peak_bytes:
            best = plan
    assert best is not None
    return best


def slot_counts(most: int) -> list[int]:
    """Return numbers from 1 to `most` in geometric steps."""
    ratio = max(1, most) ** (1 / (_SLOTS - 1))
    return sorted({round(ratio**k) for k in range(_SLOTS)})
