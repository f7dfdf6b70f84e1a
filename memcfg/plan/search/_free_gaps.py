"""Where a plan's arena has room for the scratch of an op, at each of its moments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import Compute
from memcfg.plan.format._simulate import buffers_at_ops
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from memcfg.graph import Algorithm, Graph
    from memcfg.plan.format._actions import Action
    from memcfg.plan.format._plan import Plan

_Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class FreeGaps:
    """The bytes beside everything that is in use while ops run, below a ceiling."""

    ceiling: int | None  # None: there is always room above
    alignment: int
    spans: Mapping[int, Mapping[int, _Spans]] = field(repr=False)  # by op, by action

    @staticmethod
    def of(graph: Graph, plan: Plan, ops: Container[int]) -> FreeGaps:
        """Find those of some ops; the ceiling is the plan's limit."""
        found: dict[int, dict[int, _Spans]] = defaultdict(dict)
        for action, op, spans in buffers_at_ops(graph, plan, ops):
            found[op][action] = spans
        return FreeGaps(plan.limit_bytes, plan.alignment, found)

    def room(self, op: int) -> int | None:
        """Return the most scratch that fits whenever an op runs; None: any does."""
        if self.ceiling is None:
            return None
        return min(
            (_largest(spans, self.ceiling) for spans in self.spans[op].values()),
            default=0,
        )

    def place(self, plan: Plan, chosen: Mapping[int, Algorithm]) -> list[Action]:
        """Return a plan's actions with these algorithms, each in the lowest gap.

        Pre: their scratch is within `room`.
        """
        actions = list(plan.actions)
        for op, algorithm in chosen.items():
            size = align_up(algorithm.scratch_bytes, self.alignment)
            for index, spans in self.spans[op].items():
                action = actions[index]
                assert isinstance(action, Compute)
                actions[index] = replace(
                    action,
                    algorithm=algorithm.name,
                    scratch_offset=_lowest(spans, size) if size else None,
                )
        return actions


def _largest(spans: _Spans, ceiling: int) -> int:
    most = at = 0
    for begin, end in spans:
        most, at = max(most, begin - at), max(at, end)
    return max(most, ceiling - at)


def _lowest(spans: _Spans, size: int) -> int:
    at = 0
    for begin, end in spans:
        if begin - at >= size:
            return at
        at = max(at, end)
    return at
