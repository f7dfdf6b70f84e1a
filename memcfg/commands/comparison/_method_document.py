"""The JSON document from which all reports of ``memcfg compare`` are made."""

from __future__ import annotations

import json
import math
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from memcfg.commands._measured import environment
from memcfg.commands.comparison._method_cells import BANDWIDTHS, Planned
from memcfg.commands.comparison._method_facts import FACTS, is_lossless, rounding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memcfg.commands.comparison._method_cells import Case, Cell, Refused
    from memcfg.graph import Tier

RATES = [rate if math.isfinite(rate) else "unlimited" for rate in BANDWIDTHS]
_SHORTEST = 1e-6  # seconds; a mean of zeros has no logarithm


def document(
    cases: Sequence[Case], cells: Sequence[Cell], steps: int, tiers: Sequence[Tier]
) -> dict[str, Any]:
    """Collect what the reports show, in bytes, seconds and fractions of 1."""
    budgets = dict.fromkeys(budget_text(cell) for cell in cells)
    methods = dict.fromkeys(cell.method for cell in cells)
    return {
        "environment": environment(),
        "bandwidths": RATES,
        "tiers": tier_rows(tiers),
        "steps": steps,
        "budgets": list(budgets),
        "networks": [_network(case) for case in cases],
        "methods": [
            row([cell for cell in cells if cell.method == name]) for name in methods
        ],
        "cells": [_cell(cell) for cell in cells],
    }


def tier_rows(tiers: Sequence[Tier]) -> list[dict[str, Any]]:
    """Return the tiers that methods swap to; the first has each of the bandwidths."""
    return [
        {
            "tier": tier.name,
            "limit_bytes": tier.limit_bytes,
            "bandwidth": tier.bytes_per_second if number else None,
        }
        for number, tier in enumerate(tiers)
    ]


def in_lines(document: Mapping[str, Any]) -> str:
    """Format a document as JSON, with each element of its lists on a line."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{" + ",\n ".join(parts) + "}\n"


def budget_text(cell: Cell) -> str:
    """Format a budget as it was given, such as ``"60%"``."""
    return f"{float(cell.budget * 100):g}%"


def _rates(cell: Cell) -> list[float | str]:
    """Return what a cell was planned for, as values of JSON."""
    return RATES if len(cell.outcomes) > 1 else ["any"]


def at_rate(cell: Mapping[str, Any], rate: float | str) -> Mapping[str, Any]:
    """Return the entry of a cell for a bandwidth."""
    return next(at for at in cell["at"] if at["bandwidth"] in (rate, "any"))


def _network(case: Case) -> dict[str, Any]:
    task = case.task
    return {
        "letter": case.letter,
        "network": task.network,
        "batch": task.batch,
        "arguments": dict(task.arguments),
        "times": task.times,
        "ops": len(case.graphs[0].ops),
        "share_peak_bytes": case.share_peak_bytes,
        "share_seconds": case.share_seconds,
        "lower_bound_bytes": case.lower_bound_bytes,
        "copies_per_second": case.copies_per_second,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    case = cell.case
    return {
        "method": cell.method,
        "network": case.task.network,
        "budget": budget_text(cell),
        "limit_bytes": cell.limit_bytes,
        "is_below_bound": cell.limit_bytes < case.lower_bound_bytes,
        "at": [
            {"bandwidth": rate, **_outcome(case, result)}
            for rate, result in zip(_rates(cell), cell.outcomes, strict=True)
        ],
        "trained": None
        if cell.trained is None
        else {
            **cell.trained._asdict(),
            "is_as_planned": cell.is_as_planned,
            "slowdown": cell.trained.seconds / cell.trained.share_seconds,
        },
    }


def _outcome(case: Case, outcome: Planned | Refused) -> dict[str, Any]:
    if not isinstance(outcome, Planned):
        return outcome._asdict()
    return {
        "reason": None,
        **outcome._asdict(),
        "peak": outcome.peak_bytes / case.share_peak_bytes,
        "slowdown": outcome.seconds / case.share_seconds,
        "host_peak": outcome.host_peak_bytes / case.share_peak_bytes,
    }


# -- a method's row -------------------------------------------------------------


def row(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the facts of a method, and the means over the cells where it has a plan.

    Means are geometric: of peaks, of slowdowns, of 1 and the extra work, of seconds of
    planning; that of the host's peaks is arithmetic, since these may be 0. A slowdown
    is over the cells that have a plan at its bandwidth, everything else over those with
    a plan at the middle bandwidth. The least peak of a network is the lowest of a plan,
    or the bytes that a refusal names if these are fewer.
    """
    method = cells[0].method
    facts = FACTS[method]
    plans = [(cell, plan) for cell in cells if (plan := cell.plan()) is not None]
    codecs = {codec for cell in cells for codec in lossy(cell)}
    return {
        "method": method,
        **facts._asdict(),
        "technique": list(facts.technique),
        "lossless": is_lossless(method) and not codecs,
        "networks": "".join(dict.fromkeys(cell.case.letter for cell, _ in plans)),
        "plans": len(plans),
        "cells": len(cells),
        "least": _mean(_least(cells)),
        "peak": _mean(plan.peak_bytes / c.case.share_peak_bytes for c, plan in plans),
        "slowdowns": [
            _mean(result for cell in cells if (result := cell.slowdown(at)) is not None)
            for at in range(len(BANDWIDTHS))
        ],
        "extra_work": _less_one(_mean(1 + plan.extra_work for _, plan in plans)),
        "host_peak": sum(p.host_peak_bytes / c.case.share_peak_bytes for c, p in plans)
        / len(plans)
        if plans
        else None,
        "planning_seconds": _mean(
            max(plan.planning_seconds, _SHORTEST) for _, plan in plans
        ),
        "trained_slowdown": _mean(
            cell.trained.seconds / cell.trained.share_seconds
            for cell in cells
            if cell.trained is not None
        ),
    }


def _mean(values: Iterable[float]) -> float | None:
    result = list(values)
    return geometric_mean(result) if result else None


def _less_one(value: float | None) -> float | None:
    return None if value is None else value - 1


def lossy(cell: Cell) -> set[str]:
    """Return the codecs of a cell's plans that change values that ops read."""
    plans = [each for each in cell.outcomes if isinstance(each, Planned)]
    return {codec for plan in plans for codec in rounding(plan.lossy)}


def _least(cells: Sequence[Cell]) -> list[float]:
    """Return the lowest peak of a plan, or bytes of a refusal, by network."""
    least: dict[str, float] = {}
    for cell in cells:
        outcome = cell.outcome()
        nbytes = (
            outcome.peak_bytes if isinstance(outcome, Planned) else outcome.needs_bytes
        )
        if nbytes is not None:
            part = nbytes / cell.case.share_peak_bytes
            letter = cell.case.letter
            least[letter] = min(least.get(letter, part), part)
    return list(least.values())
