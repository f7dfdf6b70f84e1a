"""Choice of the pages of the arena that go back before results outside of it.

A result outside of the arena takes memory of its own while pages that earlier ops have
written stay resident. As many of those that no later op uses go back to the system
first. So a process takes no more than the arena if that is largest long before the
result is written. The next run takes the pages again.
"""

from __future__ import annotations

import mmap
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.format._actions import Compute
from memcfg.plan.format._clock import cost_of
from memcfg.plan.format._simulate import Usage
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from memcfg.graph import Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.format._plan import Plan

__all__ = ["Discards", "choose_discards"]

_PAGE = mmap.PAGESIZE
_RATE = 1e9  # bytes per second at which a system gives zeroed pages to one thread
_PART = 0.01  # of the predicted time of a run that taking pages again may add
_LEAST = 0.5  # of the bytes of the results; fewer hardly make a process smaller

_Span = tuple[int, int]  # offset in the arena and bytes


class Discards(NamedTuple):
    """Bytes of the arena that no action from `action` on uses, as (offset, bytes)."""

    action: int
    spans: tuple[_Span, ...]


def choose_discards(
    graph: Graph, plan: Plan, results: Container[int], nbytes: int
) -> Discards | None:
    """Return which pages go back before the first op that writes one of `results`.

    They are at most `nbytes`, those of the results, and at most as many as can be taken
    again in a hundredth of the predicted time. None if they are less than half of the
    results: each run would take pages again for a process that is hardly smaller.
    """
    most = min(nbytes, int(_PART * _RATE * plan.elapsed_seconds)) // _PAGE * _PAGE
    least = _LEAST * nbytes
    first = next(
        (
            index
            for index, action in enumerate(plan.actions)
            if isinstance(action, Compute)
            and any(tensor in results for tensor in graph.ops[action.op].outputs)
        ),
        None,
    )
    if first is None or not most or most < least:
        return None
    usage = Usage(graph, plan)
    written: set[_Span] = set()
    needed: set[_Span] = set()
    for index, action in enumerate(plan.actions):
        usage.follow(index)
        if index < first:
            written.update(_written(usage), _scratch(graph, plan, action))
        else:
            needed.update(usage.buffers.values(), _scratch(graph, plan, action))
    chosen = []
    for begin, size in sorted(_pages(written, needed), key=lambda each: -each[1]):
        if most:
            chosen.append((begin, min(size, most)))
            most -= chosen[-1][1]
    if not chosen or sum(size for _, size in chosen) < least:
        return None
    return Discards(first, tuple(chosen))


def _written(usage: Usage) -> Iterator[_Span]:
    """Yield the buffers that ops write; inputs may be read where the caller has them.

    Pages of the arena that were never touched cannot go back.
    """
    for (_, tensor), span in usage.buffers.items():
        if usage.graph.producer[tensor] is not None:
            yield span


def _scratch(graph: Graph, plan: Plan, action: Action) -> Iterator[_Span]:
    if isinstance(action, Compute) and action.scratch_offset is not None:
        _, nbytes = cost_of(graph.ops[action.op], action.algorithm)
        yield action.scratch_offset, align_up(nbytes, plan.alignment)


def _pages(written: Iterable[_Span], needed: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the whole pages inside `written` and outside of `needed`, ascending."""
    events = []  # offset, whether a span ends there, whether it is needed
    for spans, is_needed in ((written, False), (needed, True)):
        for begin, size in filter(itemgetter(1), spans):
            events += [(begin, False, is_needed), (begin + size, True, is_needed)]
    count = [0, 0]  # spans that are written and needed at an offset
    start: int | None = None
    for at, ends, is_needed in sorted(events):
        count[is_needed] += -1 if ends else 1
        is_free = count[False] > 0 and not count[True]
        if start is None:
            start = at if is_free else None
        elif not is_free:
            begin, end = align_up(start, _PAGE), at // _PAGE * _PAGE
            if begin < end:
                yield begin, end - begin
            start = None
