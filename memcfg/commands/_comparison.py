"""``memcfg plan NETWORK``: every method side by side, planned and run."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from memcfg._tables import draw, new_table
from memcfg._terminal import write
from memcfg.commands._measured import Measured, measure
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.plan import NAMED_POLICIES, Plan, keep_all, lower_bound, share
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.commands._tasks import Task
    from memcfg.graph import Graph


class _Row(NamedTuple):
    """What one method made of a graph: a plan, or why there is none."""

    method: str
    plan: Plan | None
    refusal: str = ""
    measured: Measured | None = None


def compare(
    task: Task, graph: Graph, methods: Sequence[str], limit: int | None, steps: int
) -> int:
    """Plan by every method, print the table; 1 if none has a plan.

    With `steps` each plan trains so many steps.
    """
    write(_head(graph, limit))
    rows = [_row(name, graph, limit) for name in methods]
    if steps:
        rows = [_run(row, task, limit, steps) if row.plan else row for row in rows]
    write(_table(rows, limit, measured=steps > 0))
    return 0 if any(row.plan for row in rows) else 1


def _head(graph: Graph, limit: int | None) -> str:
    keeping = keep_all()(graph).peak_bytes
    sharing = share()(graph).peak_bytes
    bound = lower_bound(graph)
    lines = [
        f"{graph.name!r}: {len(graph.ops)} ops",
        f"  limit        {'none' if limit is None else format_bytes(limit):>11}",
        f"  keep_all     {format_bytes(keeping):>11}",
        f"  share        {format_bytes(sharing):>11}",
        f"  lower bound  {format_bytes(bound):>11}",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, graph: Graph, limit: int | None) -> _Row:
    try:
        return _Row(name, NAMED_POLICIES[name]()(graph, limit))
    except InfeasiblePlanError as error:
        needs = format_bytes(error.smallest_limit_bytes)
        return _Row(name, None, f"needs {needs}")
    except MemcfgError as error:
        return _Row(name, None, str(error).splitlines()[0])


def _run(row: _Row, task: Task, limit: int | None, steps: int) -> _Row:
    policy = NAMED_POLICIES[row.method]()
    return row._replace(measured=measure(task, policy, limit, steps))


def extra(plan: Plan) -> str:
    """Write how much of the work is done again."""
    first = plan.predicted.seconds - plan.predicted.recompute_seconds
    return f"{plan.predicted.recompute_seconds / first:.1%}" if first else "unknown"


def gap(plan: Plan) -> str:
    """Write how far the time may be above the least."""
    value = plan.predicted.optimality_gap
    return "" if value is None else f"{value:.1%}"


def is_unproven(plan: Plan) -> bool:
    """Whether a method that proves its plans has not proven this one."""
    return plan.summary is not None and plan.summary.unproven


def seconds(value: float) -> str:
    """Write a time with three digits."""
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def _table(rows: list[_Row], limit: int | None, *, measured: bool) -> str:
    """Draw a row a method; what there is no plan for is told below."""
    numbers = ["Peak", "Extra work", "Time", "Gap", "Planned in"]
    if measured:
        numbers[2:] = ["Gap", "Measured peak", "Step"]
    drawn = new_table("Method", numbers=numbers)
    for row in rows:
        if row.plan is None:
            continue
        cells = [format_bytes(row.plan.peak_bytes), extra(row.plan)]
        if row.measured is None:
            cells += [
                seconds(row.plan.predicted.seconds),
                gap(row.plan),
                seconds(row.plan.predicted.planning_seconds),
            ]
        else:
            cells += [
                gap(row.plan),
                format_bytes(row.measured.peak_bytes),
                seconds(row.measured.seconds),
            ]
        drawn.add_row(row.method, *cells)
    refused = [row for row in rows if row.plan is None]
    parts = [draw(drawn)] if len(refused) < len(rows) else []
    unproven = [r.method for r in rows if r.plan and is_unproven(r.plan)]
    if unproven:
        parts += ["", "Not proven the method's best, since its search ended first:"]
        parts += [f"  {method}" for method in unproven]
    if refused:
        what = "No plan" if limit is None else f"No plan within {format_bytes(limit)}"
        parts += ["", f"{what}:"] if parts else [f"{what}:"]
        parts += [_refusal(row) for row in refused]
    return "\n".join(parts)


def _refusal(row: _Row) -> str:
    """Write why a method has no plan, in lines of 79 columns."""
    lead = f"  {row.method:<22} "
    return textwrap.fill(
        row.refusal, 79, initial_indent=lead, subsequent_indent=" " * len(lead)
    )
