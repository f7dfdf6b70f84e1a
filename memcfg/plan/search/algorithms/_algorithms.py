"""Choices of algorithms for the ops of a graph, and their names in plans."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Action, Compute
from memcfg.plan.format._plan import Group
from memcfg.plan.search._request import FEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memcfg.graph import Algorithm, Graph, Op
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._request import Request

Choice = dict[int, "Algorithm"]  # op -> algorithm other than the default

_ORACLE = "reference"  # NumPy's algorithm, never chosen to save scratch
_PART = re.compile(r"(.+)/([1-9][0-9]*)")


def micro_batch(algorithm: Algorithm) -> int | None:
    """Return how many images an algorithm processes at a time; None means all."""
    match = _PART.fullmatch(algorithm.name)
    return None if match is None else int(match[2])


def algorithms(op: Op, *, divided: bool = False) -> list[Algorithm]:
    """Return an op's algorithms, the default first.

    `divided` includes those that process parts of the batch.
    """
    return [
        each
        for each in op.algorithms
        if each.name != _ORACLE and (divided or micro_batch(each) is None)
    ]


def fastest(op: Op) -> Algorithm | None:
    """Return the fastest algorithm of an op, vDNN's (p), or None."""
    return min(algorithms(op), key=lambda each: each.seconds, default=None)


def thriftiest(op: Op) -> Algorithm | None:
    """Return the algorithm of an op with the least scratch, vDNN's (m), or None."""
    return least(algorithms(op))


def least(rows: Iterable[Algorithm]) -> Algorithm | None:
    """Return the fastest of the algorithms with the least scratch, or None."""

    def cost(each: Algorithm) -> tuple[int, float]:
        return each.scratch_bytes, each.seconds

    return min(rows, key=cost, default=None)


def default(op: Op) -> Algorithm | None:
    """Return the default algorithm of an op, or None if it lists none."""
    return op.algorithms[0] if op.algorithms else None


def choose(graph: Graph, pick: Callable[[Op], Algorithm | None]) -> Choice:
    """Pick an algorithm for each op; the result omits defaults."""
    result: Choice = {}
    for index, op in enumerate(graph.ops):
        chosen = pick(op)
        if chosen is not None and chosen != op.algorithms[0]:
            result[index] = chosen
    return result


def with_choice(graph: Graph, choice: Mapping[int, Algorithm]) -> Graph:
    """Return the graph with the chosen algorithms' seconds and scratch as defaults."""
    ops = list(graph.ops)
    for index, chosen in choice.items():
        scratch, seconds = chosen.scratch_bytes, chosen.seconds
        ops[index] = replace(ops[index], scratch_bytes=scratch, seconds=seconds)
    return replace(graph, ops=tuple(ops))


def named(actions: Iterable[Action], names: Mapping[int, str]) -> tuple[Action, ...]:
    """Return the actions with algorithms named where they had the default."""
    return tuple(
        replace(action, algorithm=names[action.op])
        if isinstance(action, Compute)
        and action.op in names
        and action.algorithm is None
        else action
        for action in actions
    )


def planned(request: Request, actions: Sequence[Action]) -> Plan:
    """Return the plan of actions of the request's graph, with a group of algorithms."""
    graph = request.graph
    others = {
        action.op: action.algorithm
        for action in actions
        if isinstance(action, Compute) and action.algorithm is not None
    }
    plan = request.plan(actions)
    if not others or plan.summary is None:
        return plan
    sizes = {
        op: each.scratch_bytes
        for op, name in others.items()
        for each in graph.ops[op].algorithms
        if each.name == name
    }
    largest = sorted(others, key=lambda op: (-sizes[op], op))[:FEW]
    group = Group(
        len(others),
        max(sizes.values()),
        tuple(f"{graph.ops[op].name} ({others[op]})" for op in largest),
    )
    return replace(plan, summary=replace(plan.summary, algorithms=group))
