"""A plan in words: the table that ``print(plan)`` shows.

Owns the wording. Refuses to compute: every number comes from the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._terminal import WIDTH, paragraph, shorten, writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.plan._facts import Group, Summary
    from memcfg.plan._plan import Plan

__all__ = ["describe"]

_LABEL = 13  # width of the first column, in characters
_NAME = 40  # columns of a name in a sentence


def describe(plan: Plan) -> str:
    """Write a plan as lines of 80 columns at most, without a newline at the end."""
    lines = [_title(plan), *_costs(plan)]
    if plan.summary is not None:
        lines += _deeds(plan.summary)
        lines += _roles(plan.summary, plan.peak_bytes)
    return writable("\n".join(lines))


def _title(plan: Plan) -> str:
    chosen = plan.summary.chosen_by if plan.summary else ""
    by = f", chosen by {chosen}" if chosen else ""
    how = shorten(f"by {plan.method}{by}", _NAME)
    graph = shorten(plan.graph, WIDTH - len("Plan of '' ") - len(how))
    return f"Plan of '{graph}' {how}"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}} {text}"


def _size(nbytes: int) -> str:
    return f"{format_bytes(nbytes):>10}"


def _costs(plan: Plan) -> list[str]:
    predicted = plan.predicted
    peak = f"{_size(plan.peak_bytes)}  ({plan.peak_bytes} B)"
    if plan.summary and plan.summary.all_bytes:
        share = plan.peak_bytes / plan.summary.all_bytes
        peak += f", {share:.1%} of keep_all"
    limit = "no limit"
    if plan.limit_bytes is not None:
        limit = f"{_size(plan.limit_bytes)}  ({plan.limit_bytes} B)"
    lines = [
        _line("peak", peak),
        _line("limit", limit if plan.limit_bytes is not None else f"{limit:>10}"),
        _line(
            "lower bound",
            f"{_size(plan.lower_bound_bytes)}  ({plan.lower_bound_bytes} B)",
        ),
        _line("nominal time", _time(predicted.seconds, predicted.recompute_seconds)),
    ]
    if predicted.moved_bytes:
        held = format_bytes(predicted.host_peak_bytes)
        text = f"{_size(predicted.moved_bytes)}  at most {held} at a time"
        lines.append(_line("moved", text))
    return lines


def _time(seconds: float, recompute_seconds: float) -> str:
    first = seconds - recompute_seconds
    extra = f"recomputation adds {recompute_seconds / first:.1%}" if first > 0 else ""
    if seconds == 0:
        return f"{'unknown':>10}  (the graph states no times)"
    return f"{_milliseconds(seconds):>10}  {extra}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _deeds(summary: Summary) -> list[str]:
    return [
        _group("kept", summary.kept, "tensors for the backward phase"),
        _group("shared", summary.in_place, "outputs in place"),
        _group("recomputed", summary.recomputed, "ops"),
    ]


def _group(label: str, group: Group, what: str) -> str:
    if group.count == 0:
        return _line(label, f"{'nothing':>10}")
    words = f"{group.count} {what}:".split()
    words += [f"{name}," for name in group.names[:-1]]
    more = ", ..." if group.count > len(group.names) else ""
    words += [f"{name}{more}" for name in group.names[-1:]]
    return paragraph(_line(label, f"{_size(group.nbytes)}  "), words)


def _roles(summary: Summary, peak_bytes: int) -> list[str]:
    moment = "at rest"
    if summary.busiest_op:
        moment = f"while '{shorten(summary.busiest_op, _NAME)}' runs"
    lines = [f"  busiest moment, {moment}:"]
    entries = dict(summary.by_role)
    entries["unused"] = peak_bytes - sum(entries.values())
    for role, nbytes in entries.items():
        if nbytes:
            share = nbytes / peak_bytes
            lines.append(f"    {role:<20}{_size(nbytes)}  {share:>6.1%}")
    return lines
