"""Workspaces by what arrays are for, and by layer; closed as soon as they may be.

Owns the layout of `WorkspaceMode.SEPARATE`. What the backward pass reads is kept for
the iteration. What one layer gives to the next lives in workspaces that take turns: two
in a chain, more where a result skips layers. A layer's working memory is opened and
closed with each of its visits.

References
----------
The names, and what is where, are those of Deeplearning4j 1.0.0-M1, whose
ComputationGraph likewise has a workspace for each activation that is live.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memcfg.nn.training._layout import FEEDING, Layout, Table
from memcfg.nn.training._visits import Visit, visits_of
from memcfg.workspaces import ArrayType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.runtime import Walk

__all__ = ["separate_layout"]

_ITERATION = "WS_ALL_LAYERS_ACT"
_OUTPUT = "WS_OUTPUT_MEM"
_WORKING = "WS_LAYER_WORKING_MEM"
_TURN = "WS_LAYER_ACT_{}"
_FED = Visit("", "forward", FEEDING, FEEDING)

_WORKING_TYPES = {
    "forward": ArrayType.FF_WORKING_MEM,
    "backward": ArrayType.BP_WORKING_MEM,
    "update": ArrayType.UPDATER_WORKING_MEM,
}
_FIXED: Table = {
    ArrayType.FF_WORKING_MEM: _WORKING,
    ArrayType.BP_WORKING_MEM: _WORKING,
    ArrayType.FF_CACHE: _ITERATION,
    ArrayType.UPDATER_WORKING_MEM: _ITERATION,
}


def separate_layout(walk: Walk) -> Layout:
    """Find the workspaces of a walk.

    Parameters
    ----------
    walk : Walk
        A program's walk.

    Returns
    -------
    Layout
        The sum of its sizes is at most the size of `single_layout`: no tensor is in two
        workspaces, and none is as large as all that it ever held.
    """
    return _Separate(walk).layout()


class _Separate:
    """The making of one layout."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._graph = walk.graph
        self._visits = [_FED, *visits_of(walk)]
        self._training = any(visit.phase == "backward" for visit in self._visits)
        self._last = _last_moments(walk)
        self._busy: list[int] = []  # until which moment, for each turn
        self._opens: dict[int, list[str]] = defaultdict(list)
        self._closes: dict[int, list[str]] = defaultdict(list)
        self._types: dict[int, ArrayType] = {}

    def layout(self) -> Layout:
        tables: list[Table] = []
        table_of: dict[int, int] = {}
        for visit in self._visits:
            made = self._made(visit)
            self._types |= {tensor: self._type(tensor, visit) for tensor in made}
            table = self._table(visit, made)
            if table not in tables:
                tables.append(table)
            moments = range(visit.first, visit.last + 1)
            table_of |= dict.fromkeys(moments, tables.index(table))
        self._open_for_the_step(tables)
        scratch = {
            number: _WORKING_TYPES[self._graph.ops[moment.op].phase]
            for number, moment in enumerate(self._walk.moments)
        }
        return Layout(
            tables=tuple(tables),
            table_of=table_of,
            type_of=self._types,
            scratch_of=scratch,
            opens={moment: tuple(names) for moment, names in self._opens.items()},
            closes={moment: tuple(names) for moment, names in self._closes.items()},
            stacks=frozenset({_WORKING}),
        )

    def _made(self, visit: Visit) -> list[int]:
        if visit is _FED:
            return list(self._walk.fed)
        moments = self._walk.moments[visit.first : visit.last + 1]
        return [tensor for moment in moments for tensor in moment.makes]

    def _type(self, tensor: int, visit: Visit) -> ArrayType:
        """Say what a tensor is for, by who reads it."""
        if visit is _FED:
            first = self._graph.consumers[tensor][:1]
            at_once = first and first[0] in self._ops(self._visits[1])
            return ArrayType.INPUT if at_once else ArrayType.FF_CACHE
        maker = self._graph.ops[self._graph.producer[tensor] or 0]
        if maker.phase == "update":
            return ArrayType.UPDATER_WORKING_MEM
        if self._last[tensor] <= visit.last:
            return _WORKING_TYPES[maker.phase]
        if maker.phase == "backward":
            return ArrayType.ACTIVATION_GRAD
        if tensor in self._graph.keep or self._is_read_forward(tensor, visit):
            return ArrayType.ACTIVATIONS
        return ArrayType.FF_CACHE

    def _table(self, visit: Visit, made: Iterable[int]) -> Table:
        """Find the workspaces of a visit, and open those that it needs."""
        table = dict(_FIXED)
        by_type: dict[ArrayType, list[int]] = defaultdict(list)
        for tensor in made:
            by_type[self._types[tensor]].append(tensor)
        for kind in (ArrayType.INPUT, ArrayType.ACTIVATIONS, ArrayType.ACTIVATION_GRAD):
            if by_type[kind]:
                table[kind] = self._home(visit, by_type[kind])
        if self._works(visit, by_type):
            self._opens[visit.first].append(_WORKING)
            self._closes[visit.last].append(_WORKING)
        return table

    def _home(self, visit: Visit, tensors: list[int]) -> str:
        """Choose a workspace for what outlives a visit."""
        if any(tensor in self._graph.keep for tensor in tensors):
            return _ITERATION if self._training else _OUTPUT
        if any(self._is_read_backward(t) for t in tensors if visit.phase == "forward"):
            return _ITERATION
        return self._turn(visit, max(self._last[tensor] for tensor in tensors))

    def _turn(self, visit: Visit, until: int) -> str:
        """Take the first workspace whose last turn is over."""
        turns = (k for k, busy in enumerate(self._busy) if busy < visit.first)
        turn = next(turns, len(self._busy))
        self._busy[turn : turn + 1] = [until]
        name = _TURN.format(turn + 1)
        self._opens[visit.first].append(name)
        self._closes[until].append(name)
        return name

    def _works(self, visit: Visit, by_type: dict[ArrayType, list[int]]) -> bool:
        """Whether a visit needs working memory."""
        moments = self._walk.moments[max(visit.first, 0) : visit.last + 1]
        return bool(
            by_type[ArrayType.FF_WORKING_MEM] or by_type[ArrayType.BP_WORKING_MEM]
        ) or any(self._walk.scratch(moment) for moment in moments)

    def _open_for_the_step(self, tables: list[Table]) -> None:
        """Open what is in use from the first input to the end, if anything is."""
        kinds = set(self._types.values())
        used = {table[kind] for table in tables for kind in kinds if kind in table}
        scratch = any(
            self._graph.ops[m.op].phase == "update" and self._walk.scratch(m)
            for m in self._walk.moments
        )
        if scratch:
            used.add(_ITERATION)
        self._opens[FEEDING] += [name for name in (_ITERATION, _OUTPUT) if name in used]

    def _ops(self, visit: Visit) -> set[int]:
        moments = self._walk.moments[visit.first : visit.last + 1]
        return {moment.op for moment in moments}

    def _is_read_forward(self, tensor: int, visit: Visit) -> bool:
        """Whether a later visit of the forward phase reads a tensor."""
        ops = self._ops(visit)
        return any(
            self._graph.ops[i].phase == "forward" and i not in ops
            for i in self._graph.consumers[tensor]
        )

    def _is_read_backward(self, tensor: int) -> bool:
        readers = self._graph.consumers[tensor]
        return any(self._graph.ops[i].phase != "forward" for i in readers)


def _last_moments(walk: Walk) -> dict[int, int]:
    """For each tensor the moment that ends it; what is kept lives beyond the last."""
    beyond = len(walk.moments)
    last = dict.fromkeys(range(len(walk.graph.tensors)), beyond)
    for moment in walk.moments:
        last |= dict.fromkeys(moment.ends, moment.number)
    return last
