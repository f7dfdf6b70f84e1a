"""What recomputation does to memory, counted anew: the oracle of the planners' search.

Graphs have no updates and no in-place pairs here, so that the bytes in use are those of
the values that are still to be read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from memcfg.graph import Graph


def apart(graph: Graph) -> Graph:
    """A step without updates, in which nothing is done in place."""
    ops = [replace(op, in_place=()) for op in graph.ops if op.phase != "update"]
    made = {t for op in ops for t in op.outputs}
    ends = {t for op in graph.ops if op.phase == "update" for t in op.inputs}
    keep = [t for t in (*graph.keep, *sorted(ends)) if t in made]
    gone = {t for op in graph.ops if op.phase == "update" for t in op.outputs}
    left = [t for t in range(len(graph.tensors)) if t not in gone]
    return replace(graph, keep=tuple(dict.fromkeys(keep))).restricted(left, ops)


def sequence(graph: Graph, dropped: Collection[int]) -> list[int]:
    """The ops in order: dropped ones again right before who needs them in backward."""
    order: list[int] = []
    again: set[int] = set()
    for index, op in enumerate(graph.ops):
        if op.phase == "backward":
            needed: set[int] = set()
            waiting = [index]
            while waiting:
                for tensor in graph.ops[waiting.pop()].inputs:
                    maker = graph.producer[tensor]
                    if maker in dropped and maker not in again | needed:
                        needed.add(maker)
                        waiting.append(maker)
            order += sorted(needed)
            again |= needed
        order.append(index)
    return _without_unread(graph, order, again)


def _without_unread(graph: Graph, order: Sequence[int], again: set[int]) -> list[int]:
    """Leave out a first computation whose values nobody reads before the second."""
    found: list[int] = []
    second: set[int] = set()
    read: set[int] = set()
    for index in reversed(order):
        op = graph.ops[index]
        if index in second and read.isdisjoint(op.outputs):
            continue
        if index in again:
            second.add(index)
        read -= set(op.outputs)
        read |= set(op.inputs)
        found.append(index)
    return found[::-1]


def rounded(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


def most_in_use(graph: Graph, order: Sequence[int]) -> int:
    """The most bytes of values that are still to be read, walking backward."""
    size = [rounded(tensor.nbytes) for tensor in graph.tensors]
    always = set(graph.persistent)
    alive = always | set(graph.keep)
    most = sum(size[t] for t in alive)
    for index in reversed(order):
        op = graph.ops[index]
        during = alive | set(op.outputs) | set(op.inputs)
        most = max(most, sum(size[t] for t in during) + rounded(op.scratch_bytes))
        alive = (alive - set(op.outputs)) | set(op.inputs)
    sources = {t for t, maker in enumerate(graph.producer) if maker is None}
    return max(most, sum(size[t] for t in sources))


def choices(
    graph: Graph, droppable: Sequence[int]
) -> Iterator[tuple[int, float, tuple[int, ...]]]:
    """Every choice: its bytes, the seconds of what is computed again, the choice."""
    for count in range(len(droppable) + 1):
        for dropped in combinations(droppable, count):
            order = sequence(graph, dropped)
            twice = [op for op in dropped if order.count(op) == 2]
            seconds = sum(graph.ops[op].seconds for op in twice)
            yield most_in_use(graph, order), seconds, dropped
