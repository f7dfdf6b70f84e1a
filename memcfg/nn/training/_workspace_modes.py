"""Workspace modes: in which workspaces the tensors of a step live, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.config import DebugMode
from memcfg.runtime import (
    OWN_BUFFERS,
    Buffer,
    ExecutionMode,
    Placement,
    graph_order,
)
from memcfg.workspaces import ArrayType, WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memcfg.graph import Op
    from memcfg.runtime import Schedule, ScheduledOp

__all__ = [
    "FEEDING",
    "Table",
    "Workspaces",
    "execution_mode",
    "separate_workspaces",
    "single_workspace",
]

_SINGLE = "LOOP_EXTERNAL"  # DL4J's name
Table = Mapping["ArrayType", str]  # where a visit's arrays live, by what they are for
FEEDING = -1  # before the first op, when the inputs are fed


@dataclass(frozen=True)
class Workspaces:
    """Workspaces of a schedule: where arrays live, and when."""

    tables: tuple[Table, ...]
    table_of: Mapping[int, int]
    type_of: Mapping[int, ArrayType]
    scratch_of: Mapping[int, ArrayType]
    opens: Mapping[int, tuple[str, ...]]
    closes: Mapping[int, tuple[str, ...]]
    stacks: frozenset[str] = frozenset()

    def workspace(self, number: int, kind: ArrayType) -> str:
        """Return the workspace of what is made at an op, by its number."""
        return self.tables[self.table_of[number]][kind]

    def layout(self, schedule: Schedule) -> Placement:
        """Place all: each workspace is a buffer that is filled from its start."""
        found = _Filling(self)
        found.open(FEEDING)
        for tensor in schedule.fed:
            kind = self.type_of[tensor]
            found.place(tensor, FEEDING, kind, schedule.rounded(tensor))
        for each in schedule.ops:
            found.pass_op(schedule, each)
        names = [name for name, nbytes in found.sizes.items() if nbytes]
        buffers = {name: i for i, name in enumerate(names)}

        def places(of: Mapping[int, tuple[str, int]]) -> dict[int, tuple[int, int]]:
            return {key: (buffers[name], at) for key, (name, at) in of.items()}

        return Placement(
            tuple(Buffer(found.sizes[name], name, kept=True) for name in names),
            places(found.tensors),
            places(found.scratch),
        )


class _Filling:
    """Follows the end of what is in use in each workspace."""

    def __init__(self, workspaces: Workspaces) -> None:
        self.sizes: dict[str, int] = {}
        self.tensors: dict[int, tuple[str, int]] = {}
        self.scratch: dict[int, tuple[str, int]] = {}  # by the index of an op
        self._workspaces = workspaces
        self._pieces: dict[str, list[tuple[int | None, int]]] = {}  # tensor, offset
        self._end: dict[str, int] = {}
        self._gone: set[int | None] = set()

    def open(self, number: int) -> None:
        """Begin workspaces anew."""
        for name in self._workspaces.opens.get(number, ()):
            self._pieces[name], self._end[name] = [], 0
            self.sizes.setdefault(name, 0)

    def pass_op(self, schedule: Schedule, op: ScheduledOp) -> None:
        """Place what an op makes, and drop what ends with it."""
        number, found = op.number, self._workspaces
        self.open(number)
        for tensor in op.makes:
            self.place(tensor, number, found.type_of[tensor], schedule.rounded(tensor))
        nbytes = schedule.scratch(op)
        if nbytes:
            name = found.workspace(number, found.scratch_of[number])
            self.scratch[op.op] = (name, self._fill(None, name, nbytes))
            self._gone.add(None)
            self._unwind(name)
        for tensor in op.ends:
            self._drop(tensor)

    def place(self, tensor: int, number: int, kind: ArrayType, nbytes: int) -> None:
        """Place a tensor where its maker's table says."""
        name = self._workspaces.workspace(number, kind)
        self.tensors[tensor] = (name, self._fill(tensor, name, nbytes))

    def _fill(self, tensor: int | None, name: str, nbytes: int) -> int:
        offset = self._end[name]
        self._pieces[name].append((tensor, offset))
        self._end[name] += nbytes
        self.sizes[name] = max(self.sizes[name], self._end[name])
        return offset

    def _drop(self, tensor: int) -> None:
        """Where what was made last is gone, its space is there again."""
        name, _ = self.tensors.get(tensor, ("", 0))
        self._gone.add(tensor)
        self._unwind(name)

    def _unwind(self, name: str) -> None:
        if name not in self._workspaces.stacks:
            return
        pieces = self._pieces[name]
        while pieces and pieces[-1][0] in self._gone:
            self._end[name] = pieces.pop()[1]


def single_workspace(schedule: Schedule) -> Workspaces:
    """Put everything into one workspace."""
    numbers = [each.number for each in schedule.ops]
    return Workspaces(
        tables=(dict.fromkeys(ArrayType, _SINGLE),),
        table_of=dict.fromkeys([FEEDING, *numbers], 0),
        type_of=dict.fromkeys(
            range(len(schedule.graph.tensors)), ArrayType.ACTIVATIONS
        ),
        scratch_of=dict.fromkeys(numbers, ArrayType.FF_WORKING_MEM),
        opens={FEEDING: (_SINGLE,)},
        closes={},
    )


class Visit(NamedTuple):
    """A layer at work: ops of a schedule that follow one another."""

    layer: str
    phase: str
    first: int
    last: int


def visits_of(schedule: Schedule) -> list[Visit]:
    """Find the visits of a schedule."""
    visits: list[Visit] = []
    for each in schedule.ops:
        op = schedule.graph.ops[each.op]
        here = (op.group, op.phase)
        if visits and (_joins(op) or here == visits[-1][:2]):
            visits[-1] = visits[-1]._replace(last=each.number)
        else:
            visits.append(Visit(*here, each.number, each.number))
    return visits


def _joins(op: Op) -> bool:
    return op.phase == "update" or (op.phase == "backward" and not op.group)


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


def separate_workspaces(schedule: Schedule) -> Workspaces:
    """Find workspaces by what arrays are for, as DL4J has them."""
    return _Separate(schedule).workspaces()


class _Separate:
    """The finding of the workspaces of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._graph = schedule.graph
        self._visits = [_FED, *visits_of(schedule)]
        self._training = any(visit.phase == "backward" for visit in self._visits)
        self._last = _last_ops(schedule)
        self._busy: list[int] = []  # until which op, for each turn
        self._opens: dict[int, list[str]] = defaultdict(list)
        self._closes: dict[int, list[str]] = defaultdict(list)
        self._types: dict[int, ArrayType] = {}

    def workspaces(self) -> Workspaces:
        tables: list[Table] = []
        table_of: dict[int, int] = {}
        for visit in self._visits:
            made = self._made(visit)
            self._types |= {tensor: self._type(tensor, visit) for tensor in made}
            table = self._table(visit, made)
            if table not in tables:
                tables.append(table)
            numbers = range(visit.first, visit.last + 1)
            table_of |= dict.fromkeys(numbers, tables.index(table))
        self._open_for_the_step(tables)
        scratch = {
            each.number: _WORKING_TYPES[self._graph.ops[each.op].phase]
            for each in self._schedule.ops
        }
        return Workspaces(
            tables=tuple(tables),
            table_of=table_of,
            type_of=self._types,
            scratch_of=scratch,
            opens={number: tuple(names) for number, names in self._opens.items()},
            closes={number: tuple(names) for number, names in self._closes.items()},
            stacks=frozenset({_WORKING}),
        )

    def _made(self, visit: Visit) -> list[int]:
        if visit is _FED:
            return list(self._schedule.fed)
        ops = self._schedule.ops[visit.first : visit.last + 1]
        return [tensor for each in ops for tensor in each.makes]

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
                table[kind] = self._workspace(visit, by_type[kind])
        if self._works(visit, by_type):
            self._opens[visit.first].append(_WORKING)
            self._closes[visit.last].append(_WORKING)
        return table

    def _workspace(self, visit: Visit, tensors: list[int]) -> str:
        """Choose a workspace for what outlives a visit."""
        if any(tensor in self._graph.keep for tensor in tensors):
            return _ITERATION if self._training else _OUTPUT
        if any(self._is_read_backward(t) for t in tensors if visit.phase == "forward"):
            return _ITERATION
        return self._next_in_turn(visit, max(self._last[tensor] for tensor in tensors))

    def _next_in_turn(self, visit: Visit, until: int) -> str:
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
        ops = self._schedule.ops[max(visit.first, 0) : visit.last + 1]
        return bool(
            by_type[ArrayType.FF_WORKING_MEM] or by_type[ArrayType.BP_WORKING_MEM]
        ) or any(self._schedule.scratch(each) for each in ops)

    def _open_for_the_step(self, tables: list[Table]) -> None:
        """Open what is in use from the first input to the end, if anything is."""
        kinds = set(self._types.values())
        used = {table[kind] for table in tables for kind in kinds if kind in table}
        scratch = any(
            self._graph.ops[each.op].phase == "update" and self._schedule.scratch(each)
            for each in self._schedule.ops
        )
        if scratch:
            used.add(_ITERATION)
        self._opens[FEEDING] += [name for name in (_ITERATION, _OUTPUT) if name in used]

    def _ops(self, visit: Visit) -> set[int]:
        return {each.op for each in self._schedule.ops[visit.first : visit.last + 1]}

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


def _last_ops(schedule: Schedule) -> dict[int, int]:
    """For each tensor the op that ends it; what is kept lives beyond the last."""
    beyond = len(schedule.ops)
    last = dict.fromkeys(range(len(schedule.graph.tensors)), beyond)
    for each in schedule.ops:
        last |= dict.fromkeys(each.ends, each.number)
    return last


def _single(schedule: Schedule) -> Placement:
    return single_workspace(schedule).layout(schedule)


def _separate(schedule: Schedule) -> Placement:
    return separate_workspaces(schedule).layout(schedule)


_MODES: dict[WorkspaceMode, ExecutionMode | None] = {
    WorkspaceMode.NONE: OWN_BUFFERS,
    WorkspaceMode.ENABLED: None,
    WorkspaceMode.SINGLE: ExecutionMode("single", graph_order, _single),
    WorkspaceMode.SEPARATE: ExecutionMode("separate", graph_order, _separate),
}


def execution_mode(
    mode: WorkspaceMode,
    layers: Callable[[Schedule], Placement] | None = None,
    debug_mode: DebugMode = DebugMode.DISABLED,
) -> ExecutionMode | None:
    """Return how programs are laid out; None where a policy plans them.

    While workspaces spill or are bypassed, each tensor has a buffer of its own.
    """
    found = _MODES[mode]
    if layers is not None:
        found = ExecutionMode("layer_workspaces", graph_order, layers)
    if found is None or debug_mode is DebugMode.DISABLED:
        return found
    return replace(OWN_BUFFERS, name=found.name)
