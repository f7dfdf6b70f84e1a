"""``memcfg plan NETWORK --ladder``: one method from the default peak to its floor."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from memcfg._tables import new_table
from memcfg._terminal import shorten, width, writable, write
from memcfg.commands._at_work import GrowingTable, shown
from memcfg.commands._comparison import extra, gap, seconds
from memcfg.commands._measured import Measured, environment, measure
from memcfg.errors import InfeasiblePlanError
from memcfg.files import write_atomically
from memcfg.plan import NAMED_POLICIES, Plan, share
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.commands._tasks import Task
    from memcfg.graph import Graph

_PARTS = tuple(range(100, 0, -10))  # limits in percent of the peak of `share`
_BAR = 20, 6  # columns of the longest bar; beside measured columns
_STEP = 8  # columns of a step's time


class Rung(NamedTuple):
    """A limit, the plan for it, and what it took."""

    limit: int
    plan: Plan
    measured: Measured | None

    @property
    def work(self) -> float:
        """Work done again, as a fraction of the rest."""
        predicted = self.plan.predicted
        first = predicted.seconds - predicted.recompute_seconds
        return predicted.recompute_seconds / first if first else 0.0


def climb(task: Task, graph: Graph, method: str, steps: int, output: str | None) -> int:
    """Plan at ever lower limits, down to the floor; print, and draw into a file.

    With `steps` each plan trains so many steps, and its row is written then.
    """
    policy = NAMED_POLICIES[method]()
    write(f"{graph.name!r} by {method}; 100% is the peak of share")
    write(f"Op times are {graph.times}.\n")
    default = share()(graph).peak_bytes
    with shown("planning: the smallest limit"):
        floor = _floor(graph, method)
    limits = [default * part // 100 for part in _PARTS]
    limits = [limit for limit in limits if limit > floor] + [floor]
    rungs = []
    for number, limit in enumerate(limits, 1):
        with shown(f"planning: {format_bytes(limit)}, {number} of {len(limits)}"):
            rungs.append(Rung(limit, policy(graph, limit), None))
    table = _table(rungs, default, measured=steps > 0)
    most = max(rung.work for rung in rungs) or 1.0
    for index, rung in enumerate(rungs):
        if steps:
            at = f"{format_bytes(rung.limit)}, {index + 1} of {len(rungs)}"
            with shown(f"training: {at}"):
                measured = measure(task, policy, rung.limit, steps)
            rungs[index] = rung._replace(measured=measured)
        table.add(*_cells(rungs[index], default, most))
    refusal: dict[str, object] | None = None
    try:
        with shown("planning: a byte less"):
            policy(graph, floor - 1)
    except InfeasiblePlanError:
        peak_op = _peak_op(rungs[-1].plan)
        refusal = {"limit_bytes": floor - 1, "peak_op": peak_op}
        smallest = format_bytes(floor, exact=True)
        write(f"\nThe smallest limit is {smallest}: {floor - 1} B is refused.")
        write(f"What sets it: {shorten(peak_op, width() // 2)}")
    if output is not None:
        if output.endswith(".svg"):
            text = _svg(graph, method, default, rungs)
        else:
            asked = {"graph": graph.name, **asdict(task), "method": method}
            if steps:
                asked |= {"steps": steps, "environment": environment()}
            text = _json(asked, default, rungs, refusal)
        write_atomically(output, text.encode())
    return 0


def _floor(graph: Graph, method: str) -> int:
    """Return the smallest limit of a method."""
    try:
        return NAMED_POLICIES[method]()(graph, 1).peak_bytes
    except InfeasiblePlanError as error:
        return error.smallest_limit_bytes


def _peak_op(plan: Plan) -> str:
    assert plan.summary is not None  # it was made here
    return plan.summary.peak_op


def _table(rungs: list[Rung], default: int, *, measured: bool) -> GrowingTable:
    """Make a table that has room for these rungs, and for what is measured."""
    numbers = ["Limit", "", "Peak", "Extra work", "Gap"]
    numbers += ["Measured", "Step"] if measured else ["Time"]
    table = new_table(numbers=numbers)
    table.add_column("", no_wrap=True, overflow="crop")
    rows = [_planned(rung, default) for rung in rungs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths += [widths[2], _STEP] if measured else [_STEP]
    left = width() - sum(columns + 2 for columns in widths) - 1
    return GrowingTable(table, [*widths, max(0, min(_BAR[measured], left))])


def _planned(rung: Rung, default: int) -> list[str]:
    return [
        format_bytes(rung.limit),
        f"{rung.limit / default:.0%}",
        format_bytes(rung.plan.peak_bytes),
        extra(rung.plan),
        gap(rung.plan),
    ]


def _cells(rung: Rung, default: int, most: float) -> list[str]:
    """Write a rung's row; its bar is as long as its work beside the most."""
    cells = _planned(rung, default)
    if rung.measured:
        cells.append(format_bytes(rung.measured.peak_bytes))
        cells.append(seconds(rung.measured.seconds))
    else:
        cells.append(seconds(rung.plan.elapsed_seconds))
    longest = _BAR[rung.measured is not None]
    return [*cells, writable("█" * round(longest * rung.work / most))]


def _json(
    asked: Mapping[str, object],
    default: int,
    rungs: list[Rung],
    refusal: dict[str, object] | None,
) -> str:
    """Write what was asked for, and what the table shows as numbers."""
    rows = [
        {
            "limit_bytes": rung.limit,
            "peak_bytes": rung.plan.peak_bytes,
            "seconds": rung.plan.elapsed_seconds,
            "recompute_seconds": rung.plan.predicted.recompute_seconds,
            "optimality_gap": rung.plan.predicted.optimality_gap,
            "measured": rung.measured and rung.measured._asdict(),
        }
        for rung in rungs
    ]
    found = {"share_peak_bytes": default, "rungs": rows, "refusal": refusal}
    return json.dumps({**asked, **found}, indent=1) + "\n"


def _svg(graph: Graph, method: str, default: int, rungs: list[Rung]) -> str:
    """Draw extra work over the limit, a point a rung."""
    wide, high, left, below = 640, 400, 70, 60
    most = max((rung.work for rung in rungs), default=0.0) or 0.01

    def x(part: float) -> float:
        return left + (wide - left - 30) * part

    def y(work: float) -> float:
        return high - below - (high - below - 50) * work / most

    points = [(x(rung.limit / default), y(rung.work), rung) for rung in rungs]
    title = escape(f"{graph.name} by {method}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
        f'<text x="{left}" y="28" font-size="16">{title}</text>',
    ]
    for percent in range(0, 101, 20):
        at = x(percent / 100)
        parts.append(
            f'<line x1="{at:.1f}" y1="{y(most):.1f}" x2="{at:.1f}" y2="{y(0):.1f}" '
            f'stroke="#ddd"/><text x="{at:.1f}" y="{high - below + 18}" '
            f'text-anchor="middle">{percent}%</text>'
        )
    for step in range(5):
        at = most * step / 4
        parts.append(
            f'<line x1="{x(0):.1f}" y1="{y(at):.1f}" x2="{x(1):.1f}" y2="{y(at):.1f}" '
            f'stroke="#ddd"/><text x="{left - 8}" y="{y(at) + 4:.1f}" '
            f'text-anchor="end">{at:.1%}</text>'
        )
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="#0a5" stroke-width="2"/>'
    )
    parts += [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="#0a5"><title>'
        f"{format_bytes(rung.limit)}: {rung.work:.1%}</title></circle>"
        for a, b, rung in points
    ]
    whole = format_bytes(default)
    parts += [
        f'<text x="{x(0.5):.1f}" y="{high - 14}" text-anchor="middle">limit, of the '
        f"{whole} that share needs</text>",
        f'<text x="16" y="{y(most / 2):.1f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {y(most / 2):.1f})">extra work</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
