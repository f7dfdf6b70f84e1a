"""Tables of where the bytes of a planned step go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from memcfg._tables import draw, new_table
from memcfg.units import align_up, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memcfg.torch.budget._step import Step

_ROWS = 10  # the number of modules that a table lists


def by_role(step: Step) -> dict[str, int]:
    """Return the bytes at the busiest time by role, with those outside the graph."""
    graph = step.traced.graph
    result: Counter[str] = Counter()
    for each in step.peak.tensors:
        tensor = graph.tensors[each]
        result[tensor.role.replace("_", " ")] += align_up(tensor.nbytes)
    result["scratch"] += step.peak.scratch_bytes
    result.update(step.overhead)
    return {role: nbytes for role, nbytes in result.most_common() if nbytes}


def by_module(step: Step) -> dict[str, int]:
    """Return the bytes at the busiest time by the path of the module that owns them.

    A tensor belongs to the module whose op makes it, or, if no op makes it, to the
    module that reads it first.
    """
    graph = step.traced.graph
    result: Counter[str] = Counter()
    for each in step.peak.tensors:
        maker = graph.producer[each]
        first = maker if maker is not None else next(iter(graph.consumers[each]), None)
        owner = "" if first is None else graph.ops[first].group
        result[owner or "(model)"] += align_up(graph.tensors[each].nbytes)
    if step.peak.op is not None:
        owner = graph.ops[step.peak.op].group or "(model)"
        result[owner] += step.peak.scratch_bytes
    return {owner: nbytes for owner, nbytes in result.most_common() if nbytes}


def table_of(head: str, rows: Mapping[str, int]) -> str:
    """Return a table of bytes by name; its last row sums the names not listed."""
    table = new_table(head, numbers=("bytes", "part"))
    total = sum(rows.values())
    shown = list(rows.items())[:_ROWS]
    rest = total - sum(nbytes for _, nbytes in shown)
    for name, nbytes in _with_rest(shown, rest):
        part = f"{100 * nbytes / total:.1f} %" if total else ""
        table.add_row(name, format_bytes(nbytes), part)
    return draw(table)


def _with_rest(shown: list[tuple[str, int]], rest: int) -> Iterable[tuple[str, int]]:
    return [*shown, ("others", rest)] if rest else shown


def report_of(step: Step, limit_bytes: int | None) -> str:
    """Return a report of a step's peak, its plan, and bytes by role and by module."""
    peak = format_bytes(step.peak_bytes)
    arena = step.whole[1].peak_bytes
    if arena != step.peak_bytes:
        peak += f", {format_bytes(arena)} in one arena, which has holes"
    limit = "no limit" if limit_bytes is None else f"limit {format_bytes(limit_bytes)}"
    op = step.peak.op
    where = "" if op is None else f", at {step.traced.graph.ops[op].name}"
    predicted = step.plan.predicted
    again = 0.0
    if predicted.seconds > predicted.recompute_seconds:
        again = predicted.recompute_seconds / (
            predicted.seconds - predicted.recompute_seconds
        )
    return "\n".join(
        (
            f"Peak of a step: {peak} ({limit}){where}",
            f"Method: {step.plan.method}; computed again: {100 * again:.1f} % of time",
            *_elsewhere(step),
            table_of("role", by_role(step)),
            table_of("module", by_module(step)),
        )
    )


def _elsewhere(step: Step) -> Iterable[str]:
    """Return a line on the tensors that leave, if any do."""
    store, predicted = step.store, step.plan.predicted
    if store is None or not step.spill_bytes:
        return
    waits = 100 * predicted.stall_seconds / (predicted.seconds or 1.0)
    limit = store.limit_bytes
    most = "" if limit is None else f" of at most {format_bytes(limit)}"
    yield (
        f"Elsewhere ({store.medium.name}): {format_bytes(step.spill_bytes)}{most}; "
        f"copied: {format_bytes(predicted.moved_bytes)}; waits: {waits:.1f} % of time"
    )
