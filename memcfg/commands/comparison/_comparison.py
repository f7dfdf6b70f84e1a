"""``memcfg plan NETWORK``: all methods side by side, planned and, with --run, run."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from memcfg._tables import new_table
from memcfg._terminal import width, write
from memcfg.commands._at_work import GrowingTable, shown
from memcfg.commands._measured import Measured, measure
from memcfg.commands._tasks import Task
from memcfg.commands.comparison._method_facts import describe_lossy
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.plan import NAMED_POLICIES, Plan, keep_all, lower_bound, share
from memcfg.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memcfg.commands._tasks import OwnTask
    from memcfg.graph import Graph
    from memcfg.plan import Policy


_WIDTHS = {  # widths of the columns, in order; a size has up to 11 characters
    "Peak": 11,
    "Extra": 6,  # recomputed work
    "Time": 9,
    "Gap": 6,
    "Measured": 11,
    "Step": 9,
    "Planned in": 9,
}


_FEW = 2  # tiers with a column each


class _Refusal(NamedTuple):
    """Why a method has no plan: it needs more bytes, or cannot plan this graph."""

    method: str
    needs: int | None
    reason: str = ""


def compare(
    task: Task | OwnTask,
    graph: Graph,
    methods: Sequence[str],
    limit: int | None,
    steps: int,
) -> int:
    """Plan with every method and print a row for each; return 1 if none has a plan.

    Rows are sorted, best first: by time within a limit, else by peak. With `steps` each
    plan trains that many steps, and rows are printed as they finish.
    """
    write(_head(graph, limit))
    tiers = _tiers(graph)
    numbers, table = _table(methods, tiers, measured=steps > 0)
    refused: list[_Refusal] = []
    plans: dict[str, Plan] = {}
    rows: dict[str, tuple[str, ...]] = {}
    for name in methods:
        policy = NAMED_POLICIES[name]()
        with shown(f"planning: {name}"):
            planned = _planned(policy, graph, limit)
        if isinstance(planned, _Refusal):
            refused.append(planned)
            continue
        measured = None
        if steps and isinstance(task, Task):  # a model's file is not trained
            with shown(f"training: {name}"):
                measured = measure(task, policy, limit, steps)
        cells = _cells(planned, measured)
        plans[name] = planned
        rows[name] = *(cells[each] for each in numbers), *_away(planned, tiers)
        if steps:
            table.add(name, *rows[name])
    best = _best(plans, limit)
    if not steps:
        for name in sorted(plans, key=lambda name: _rank(plans[name], limit)):
            table.add(f"{name} *" if name in best else name, *rows[name])
    _write_notes(plans, best if steps else [], refused, limit)
    return 0 if plans else 1


def _write_notes(
    plans: Mapping[str, Plan],
    best: Sequence[str],
    refused: Sequence[_Refusal],
    limit: int | None,
) -> None:
    """Print the best rows, and what is unproven, lossy or refused."""
    if len(plans) > 1:
        what = "the smallest peak" if limit is None else "the least time"
        text = f"Methods with {what}: {', '.join(best)}" if best else f"* {what}"
        write("\n" + textwrap.fill(text, width(), subsequent_indent="  "))
    if unproven := [name for name in plans if is_unproven(plans[name])]:
        write(
            "\nThe search ended before it proved that this is the method's best plan:"
        )
        write("\n".join(f"  {name}" for name in unproven))
    if text := describe_lossy({name: plan.lossy for name, plan in plans.items()}):
        write("\n" + textwrap.fill(text, width(), subsequent_indent="  "))
    if refused:
        what = "No plan" if limit is None else f"No plan within {format_bytes(limit)}"
        write(f"\n{what}:" if plans else f"{what}:")
        write("\n".join(_refusals(refused)))


def _rank(plan: Plan, limit: int | None) -> tuple[float, float]:
    """Return the key that plans are sorted by."""
    seconds, peak = plan.elapsed_seconds, plan.peak_bytes
    return (peak, seconds) if limit is None else (seconds, peak)


def _best(plans: Mapping[str, Plan], limit: int | None) -> list[str]:
    """Return the methods with the best lossless plan; none if there is one plan."""
    ranks = {n: _rank(plan, limit) for n, plan in plans.items() if not plan.lossy}
    if len(plans) < 2 or not ranks:
        return []
    return [name for name in ranks if ranks[name] == min(ranks.values())]


def _table(
    methods: Sequence[str], tiers: Sequence[str], *, measured: bool
) -> tuple[list[str], GrowingTable]:
    """Begin the table: columns of every plan, then bytes on each tier."""
    without: tuple[str, ...] = ("Measured", "Step")
    if measured:
        without = ("Time", "Planned in")
    if tiers:  # a table has 80 columns
        without += ("Gap", "Extra", "Planned in")
    numbers = [name for name in _WIDTHS if name not in without]
    widths = [max(map(len, methods)) + len(" *"), *(_WIDTHS[name] for name in numbers)]
    away = [f"On {tier}" for tier in tiers]
    if len(tiers) > _FEW:
        away = [away[0], "On others"]
    widths += [_WIDTHS["Peak"]] * len(away)
    made = new_table("Method", numbers=[*numbers, *away])
    return numbers, GrowingTable(made, widths)


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
        f"  op times     {graph.times:>11}",
    ]
    if (rate := copies(graph)) is not None:
        lines.append(f"  copies       {rate / 1e9:>6.3g} GB/s, each way, measured")
    return "\n".join(lines) + "\n"


def _planned(policy: Policy, graph: Graph, limit: int | None) -> Plan | _Refusal:
    try:
        return policy(graph, limit)
    except InfeasiblePlanError as error:
        return _Refusal(policy.name, error.smallest_limit_bytes)
    except MemcfgError as error:
        return _Refusal(policy.name, None, " ".join(str(error).split()))


def _tiers(graph: Graph) -> list[str]:
    """Return the configured tiers, if there are several."""
    result = [tier.name for tier in graph.tiers if tier.is_stated]
    return result if len(result) > 1 else []


def _away(plan: Plan, tiers: Sequence[str]) -> list[str]:
    """Format a plan's bytes on each tier; of many, on the first and on all others."""
    there = plan.summary.by_tier if plan.summary else {}
    sizes = [there.get(tier, 0) for tier in tiers]
    if len(sizes) > _FEW:
        sizes = [sizes[0], sum(sizes[1:])]
    return [format_bytes(size) for size in sizes]


def _cells(plan: Plan, measured: Measured | None) -> dict[str, str]:
    """Format a plan's cells by column, measured ones if it was run."""
    cells = {
        "Peak": format_bytes(plan.peak_bytes),
        "Extra": extra(plan),
        "Time": format_seconds(plan.elapsed_seconds),
        "Gap": gap(plan),
        "Planned in": format_seconds(plan.predicted.planning_seconds),
    }
    if measured is not None:
        cells["Measured"] = format_bytes(measured.peak_bytes)
        cells["Step"] = format_seconds(measured.seconds)
    return cells


def copies(graph: Graph) -> float | None:
    """Return a lane's bytes per second, if they were measured."""
    measured = (tier for tier in graph.tiers if tier.is_measured)
    return next((tier.bytes_per_second for tier in measured), None)


def extra(plan: Plan) -> str:
    """Format the recomputed part of the work."""
    first = plan.predicted.seconds - plan.predicted.recompute_seconds
    return f"{plan.predicted.recompute_seconds / first:.1%}" if first else "unknown"


def gap(plan: Plan) -> str:
    """Format the gap to the lower bound of time."""
    value = plan.predicted.optimality_gap
    return "" if value is None else f"{value:.1%}"


def waits(plan: Plan) -> str:
    """Format the part of a step's time in which ops wait for copies."""
    whole = plan.elapsed_seconds
    return f"{plan.predicted.stall_seconds / whole:.1%}" if whole else "unknown"


def is_unproven(plan: Plan) -> bool:
    """Return whether a method that proves its plans has not proven this one."""
    return plan.summary is not None and plan.summary.unproven


def _refusals(refused: Sequence[_Refusal]) -> Iterator[str]:
    """List why methods have no plan: sizes in a column, then each reason once."""
    reasons: dict[str, list[str]] = {}
    sizes: dict[str, str] = {}
    for each in refused:
        if each.needs is None:
            reasons.setdefault(each.reason, []).append(each.method)
        else:
            sizes[each.method] = format_bytes(each.needs)
    names_wide, sizes_wide = (
        max(map(len, words), default=0) for words in (sizes, sizes.values())
    )
    for name, size in sizes.items():
        yield f"  {name:<{names_wide}}  needs {size:>{sizes_wide}}"
    for reason, names in reasons.items():
        text = f"{', '.join(names)}: {reason}"
        lines = textwrap.wrap(text, width() - 4, break_on_hyphens=False)
        yield "  " + "\n    ".join(lines)
