"""A plan in words: the table that ``print(plan)`` shows.

Owns the wording. Refuses to compute: every number comes from the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.units import format_bytes

if TYPE_CHECKING:
    from memcfg.plan._facts import Group, Summary
    from memcfg.plan._plan import Plan

__all__ = ["describe"]

_LABEL = 13  # width of the first column, in characters


def describe(plan: Plan) -> str:
    """Write a plan as lines of text, without a newline at the end."""
    lines = [_title(plan), *_costs(plan)]
    if plan.summary is not None:
        lines += _deeds(plan.summary)
        lines += _roles(plan.summary, plan.peak_bytes)
    return "\n".join(lines)


def _title(plan: Plan) -> str:
    chosen = plan.summary.chosen_by if plan.summary else ""
    by = f", chosen by {chosen}" if chosen else ""
    return f"Plan of {plan.graph!r} by {plan.method}{by}"


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
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _deeds(summary: Summary) -> list[str]:
    return [
        _line("kept", _group(summary.kept, "tensors for the backward phase")),
        _line("shared", _group(summary.in_place, "outputs in place")),
        _line("recomputed", _group(summary.recomputed, "ops")),
    ]


def _group(group: Group, what: str) -> str:
    if group.count == 0:
        return f"{'nothing':>10}"
    more = ", ..." if group.count > len(group.names) else ""
    names = ", ".join(group.names)
    return f"{_size(group.nbytes)}  {group.count} {what}: {names}{more}"


def _roles(summary: Summary, peak_bytes: int) -> list[str]:
    moment = f"while {summary.busiest_op!r} runs" if summary.busiest_op else "at rest"
    lines = [f"  busiest moment, {moment}:"]
    entries = dict(summary.by_role)
    entries["unused"] = peak_bytes - sum(entries.values())
    for role, nbytes in entries.items():
        if nbytes:
            share = nbytes / peak_bytes
            lines.append(f"    {role:<20}{_size(nbytes)}  {share:>6.1%}")
    return lines
