"""``memcfg plan NETWORK --ladder``: one method from the default peak to its floor."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from memcfg._tables import new_table
from memcfg._terminal import shorten, width, writable, write
from memcfg.commands._at_work import GrowingTable, shown
from memcfg.commands._measured import Measured, environment, measure
from memcfg.commands._rungs import Rungs
from memcfg.commands._tasks import Task
from memcfg.commands.comparison._comparison import extra, gap, waits
from memcfg.files import write_atomically
from memcfg.plan import NAMED_POLICIES, Plan, share
from memcfg.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.commands._tasks import OwnTask
    from memcfg.graph import Graph

_BAR = 20, 6  # length of the longest bar; the same next to measured columns
_STEP = 8  # width of the column of times
_REFUSED = "refused"


class Rung(NamedTuple):
    """A limit, its plan if there is one, and what running it took."""

    limit: int
    plan: Plan | None
    measured: Measured | None = None


class _Ladder(NamedTuple):
    """Limits from the largest down, and a step by `share` to compare with."""

    graph: Graph
    method: str
    share: Plan
    rungs: list[Rung]

    def part(self, rung: Rung) -> float:
        """Return a limit as a part of the peak of `share`."""
        return rung.limit / self.share.peak_bytes

    def delay(self, rung: Rung) -> float:
        """Return how much longer a step takes than under `share`, waits included.

        It is a fraction of the time under `share`, and 0 for a faster plan.
        """
        assert rung.plan is not None
        least = self.share.elapsed_seconds
        return max(0.0, rung.plan.elapsed_seconds / least - 1) if least else 0.0

    def planned(self) -> list[Rung]:
        """Return the limits that have a plan."""
        return [rung for rung in self.rungs if rung.plan is not None]

    def most(self) -> float:
        """Return the longest delay, or a positive number if there is none."""
        return max(map(self.delay, self.planned())) or 0.01


def climb(
    task: Task | OwnTask, graph: Graph, method: str, steps: int, output: str | None
) -> int:
    """Plan at lower and lower limits, down to the floor; print, and draw to a file.

    With `steps` each plan trains that many steps before its row is printed.
    """
    policy = NAMED_POLICIES[method]()
    write(f"{graph.name!r} by {method}; 100% is the peak of share")
    write(f"Op times are {graph.times}.\n")
    shared = share()(graph)
    search = Rungs(policy, graph, shared.peak_bytes)
    rungs = [Rung(limit, search.planned.get(limit)) for limit in search.limits]
    ladder = _Ladder(graph, method, shared, rungs)
    table = _table(ladder, measured=steps > 0)
    for index, rung in enumerate(rungs):
        if steps and rung.plan is not None and isinstance(task, Task):
            at = f"{format_bytes(rung.limit)}, {index + 1} of {len(rungs)}"
            with shown(f"training: {at}"):
                measured = measure(task, policy, rung.limit, steps)
            rungs[index] = rung._replace(measured=measured)
        table.add(*_cells(ladder, rungs[index], measured=steps > 0))
    peak_op = _peak_op(search.planned[search.floor])
    write(f"\n{_end(search)}")
    write(f"What sets it: {shorten(peak_op, width() // 2)}")
    if output is not None:
        if output.endswith(".svg"):
            text = _svg(ladder)
        else:
            asked = {"graph": graph.name, **asdict(task), "method": method}
            if steps:
                asked |= {"steps": steps, "environment": environment()}
            refusal = {
                "limit_bytes": search.refused_below,
                "peak_op": peak_op,
            }
            text = _json(asked, ladder, refusal)
        write_atomically(output, text.encode())
    return 0


def _end(search: Rungs) -> str:
    """Return the smallest limit in words, and what is refused below it."""
    floor, refused = search.floor, search.refused_below
    smallest = format_bytes(floor, exact=True)
    if refused == floor - 1:
        return f"The smallest limit is {smallest}: {refused} B is refused."
    below = "" if refused is None else f"; {refused} B is refused"
    return f"The smallest limit found is {smallest}{below}."


def _peak_op(plan: Plan) -> str:
    assert plan.summary is not None  # it was made here
    return plan.summary.peak_op


def _table(ladder: _Ladder, *, measured: bool) -> GrowingTable:
    """Make a table that is wide enough for these limits and their measurements."""
    swaps = any(tier.is_stated for tier in ladder.graph.tiers)
    numbers = ["Limit", "", "Peak", "Extra work", "Waits" if swaps else "Gap"]
    numbers += ["Measured", "Step"] if measured else ["Time"]
    table = new_table(numbers=numbers)
    table.add_column("", no_wrap=True, overflow="crop")
    rows = [_planned(ladder, rung) for rung in ladder.rungs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths += [widths[2], _STEP] if measured else [_STEP]
    heads = zip(widths, numbers, strict=True)
    left = width() - sum(max(wide, len(head)) + 2 for wide, head in heads) - 1
    return GrowingTable(table, [*widths, max(0, min(_BAR[measured], left))])


def _planned(ladder: _Ladder, rung: Rung) -> list[str]:
    cells = [format_bytes(rung.limit), f"{ladder.part(rung):.0%}"]
    if rung.plan is None:
        return [*cells, _REFUSED, "", ""]
    swaps = any(tier.is_stated for tier in ladder.graph.tiers)
    last = waits(rung.plan) if swaps else gap(rung.plan)
    return [*cells, format_bytes(rung.plan.peak_bytes), extra(rung.plan), last]


def _cells(ladder: _Ladder, rung: Rung, *, measured: bool) -> list[str]:
    """Return the row of a limit; the longest delay has the longest bar."""
    cells = _planned(ladder, rung)
    if rung.plan is None:
        return [*cells, *[""] * (3 if measured else 2)]
    if rung.measured:
        cells.append(format_bytes(rung.measured.peak_bytes))
        cells.append(format_seconds(rung.measured.seconds))
    else:
        cells.append(format_seconds(rung.plan.elapsed_seconds))
    columns = round(_BAR[measured] * ladder.delay(rung) / ladder.most())
    return [*cells, writable("█" * columns)]


def _json(
    asked: Mapping[str, object], ladder: _Ladder, refusal: Mapping[str, object]
) -> str:
    """Return the arguments and the numbers of the table as JSON."""
    rows = [
        {
            "limit_bytes": rung.limit,
            "peak_bytes": plan.peak_bytes,
            "seconds": plan.elapsed_seconds,
            "recompute_seconds": plan.predicted.recompute_seconds,
            "stall_seconds": plan.predicted.stall_seconds,
            "optimality_gap": plan.predicted.optimality_gap,
            "measured": rung.measured and rung.measured._asdict(),
        }
        for rung in ladder.planned()
        for plan in (rung.plan,)
        if plan is not None
    ]
    result = {
        "share_peak_bytes": ladder.share.peak_bytes,
        "share_seconds": ladder.share.elapsed_seconds,
        "rungs": rows,
        "refused_bytes": [rung.limit for rung in ladder.rungs if rung.plan is None],
        "refusal": refusal,
    }
    return json.dumps({**asked, **result}, indent=1) + "\n"


def _svg(ladder: _Ladder) -> str:
    """Draw the delay over the limit, with a point for each limit that has a plan."""
    wide, high, left, below = 640, 400, 70, 60
    rungs, most = ladder.planned(), ladder.most()

    def x(part: float) -> float:
        return left + (wide - left - 30) * part

    def y(delay: float) -> float:
        return high - below - (high - below - 50) * delay / most

    points = [(x(ladder.part(rung)), y(ladder.delay(rung)), rung) for rung in rungs]
    title = escape(f"{ladder.graph.name} by {ladder.method}")
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
        f"{format_bytes(rung.limit)}: {ladder.delay(rung):.1%}</title></circle>"
        for a, b, rung in points
    ]
    whole = format_bytes(ladder.share.peak_bytes)
    parts += [
        f'<text x="{x(0.5):.1f}" y="{high - 14}" text-anchor="middle">limit, of the '
        f"{whole} that share needs</text>",
        f'<text x="16" y="{y(most / 2):.1f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {y(most / 2):.1f})">more time than share</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
