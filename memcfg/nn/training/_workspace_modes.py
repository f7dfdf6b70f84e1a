"""Workspace modes: in which workspaces the tensors of a step live, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.config import DebugMode, WorkspaceConfig, get_debug_mode
from memcfg.runtime import NO_ROOM, OwnBlocks, graph_order, with_margin
from memcfg.workspaces import (
    ArrayType,
    LayerWorkspaceMgr,
    OwnedWorkspace,
    Workspace,
    WorkspaceMode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memcfg.devices import Device
    from memcfg.graph import Graph, Op
    from memcfg.memory import Pool
    from memcfg.runtime import Moment, Placer, Room, Walk, Way

__all__ = [
    "FEEDING",
    "Layout",
    "Table",
    "execution_mode",
    "separate_layout",
    "single_layout",
]

_SINGLE = "LOOP_EXTERNAL"  # DL4J's name
Table = Mapping["ArrayType", str]  # where a visit's arrays live, by what they are for
FEEDING = -1  # the moment before the first op, in which the inputs are fed


@dataclass(frozen=True)
class Layout:
    """Workspaces of a walk."""

    tables: tuple[Table, ...]
    table_of: Mapping[int, int]
    type_of: Mapping[int, ArrayType]
    scratch_of: Mapping[int, ArrayType]
    opens: Mapping[int, tuple[str, ...]]
    closes: Mapping[int, tuple[str, ...]]
    stacks: frozenset[str] = frozenset()

    def home(self, moment: int, kind: ArrayType) -> str:
        """Return the workspace of what is made at a moment."""
        return self.tables[self.table_of[moment]][kind]

    def sizes(self, walk: Walk) -> dict[str, int]:
        """Return how large each workspace must be."""
        count = _Count(self)
        count.open(FEEDING)
        for tensor in walk.fed:
            count.make(tensor, FEEDING, self.type_of[tensor], walk.rounded(tensor))
        for moment in walk.moments:
            count.pass_moment(walk, moment)
        return count.most


class _Count:
    """Follows the end of what is in use in each workspace."""

    def __init__(self, layout: Layout) -> None:
        self.most: dict[str, int] = {}
        self._layout = layout
        self._pieces: dict[str, list[tuple[object, int]]] = {}  # what, where it begins
        self._end: dict[str, int] = {}
        self._home: dict[object, str] = {}
        self._gone: set[object] = set()

    def open(self, moment: int) -> None:
        for name in self._layout.opens.get(moment, ()):
            self._pieces[name], self._end[name] = [], 0
            self.most.setdefault(name, 0)

    def pass_moment(self, walk: Walk, moment: Moment) -> None:
        number, layout = moment.number, self._layout
        self.open(number)
        for tensor in moment.makes:
            self.make(tensor, number, layout.type_of[tensor], walk.rounded(tensor))
        scratch = object()
        self.make(scratch, number, layout.scratch_of[number], walk.scratch(moment))
        for each in (scratch, *moment.ends):
            self._drop(each)

    def make(self, what: object, moment: int, kind: ArrayType, nbytes: int) -> None:
        if not nbytes:
            return
        name = self._layout.home(moment, kind)
        self._home[what] = name
        self._pieces[name].append((what, self._end[name]))
        self._end[name] += nbytes
        self.most[name] = max(self.most[name], self._end[name])

    def _drop(self, what: object) -> None:
        """Where what was made last is gone, its space is there again."""
        name = self._home.get(what)
        if name not in self._layout.stacks:
            return
        self._gone.add(what)
        pieces = self._pieces[name]
        while pieces and pieces[-1][0] in self._gone:
            self._end[name] = pieces.pop()[1]


def single_layout(walk: Walk) -> Layout:
    """Put everything into one workspace."""
    moments = [moment.number for moment in walk.moments]
    return Layout(
        tables=(dict.fromkeys(ArrayType, _SINGLE),),
        table_of=dict.fromkeys([FEEDING, *moments], 0),
        type_of=dict.fromkeys(range(len(walk.graph.tensors)), ArrayType.ACTIVATIONS),
        scratch_of=dict.fromkeys(moments, ArrayType.FF_WORKING_MEM),
        opens={FEEDING: (_SINGLE,)},
        closes={},
    )


class Visit(NamedTuple):
    """A layer at work: moments of a walk that follow one another."""

    layer: str
    phase: str
    first: int
    last: int


def visits_of(walk: Walk) -> list[Visit]:
    """Find the visits of a walk."""
    visits: list[Visit] = []
    for moment in walk.moments:
        op = walk.graph.ops[moment.op]
        here = (op.group, op.phase)
        if visits and (_joins(op) or here == visits[-1][:2]):
            visits[-1] = visits[-1]._replace(last=moment.number)
        else:
            visits.append(Visit(*here, moment.number, moment.number))
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


def separate_layout(walk: Walk) -> Layout:
    """Find the workspaces of a walk."""
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


class WorkspacePlacer:
    """Gives a program's tensors room in its workspaces; see `memcfg.runtime.Placer`."""

    def __init__(
        self,
        walk: Walk,
        layout: Layout,
        sizes: Mapping[str, int],
        pool: Pool,
        owner: str,
    ) -> None:
        self.held_bytes = 0
        self._walk = walk
        self._layout = layout
        self._sizes = sizes
        self._pool = pool
        self._owner = owner
        self._spaces = _Spaces()
        managers = [self._manager(table) for table in layout.tables]
        self._managers = {at: managers[i] for at, i in layout.table_of.items()}
        self._moment = FEEDING
        self._spill = ""

    @property
    def lasting(self) -> bool:
        """Whether arrays are in pages, which are held, and not outside of them."""
        return get_debug_mode() is DebugMode.DISABLED

    def begin(self) -> None:
        """Take the pages that are not there, and open what the step begins with."""
        self.end()  # what an interrupted end left open
        if self._spill != _spill():
            self.give_back()
        if not self._spaces.by_name:
            self._take()
        for space in self._spaces.by_name.values():
            with space:  # a page that arrays kept is replaced now, or the step refused
                pass
        self._moment = FEEDING
        self._open(FEEDING)

    def make(self, tensor: int) -> Room:
        """Make a tensor where its maker's table says."""
        kind = self._layout.type_of[tensor]
        nbytes = self._walk.graph.tensors[tensor].nbytes
        made = self._managers[self._moment].empty(kind, nbytes, np.uint8)
        return _ArrayRoom(made)

    def enter(self, moment: Moment) -> None:
        """Open what a moment begins with."""
        self._moment = moment.number
        self._open(moment.number)

    def scratch(self, moment: Moment) -> Room:
        """Make an op's scratch in the working memory of its layer."""
        nbytes = self._walk.graph.ops[moment.op].scratch_bytes
        if not nbytes:
            return NO_ROOM
        kind = self._layout.scratch_of[moment.number]
        made = self._managers[moment.number].empty(kind, nbytes, np.uint8)
        return _ArrayRoom(made)

    def drop(self, room: Room) -> None:
        """Do nothing: pages are held whatever is in them."""

    def leave(self, moment: Moment) -> None:
        """Close what a moment ends."""
        for name in self._layout.closes.get(moment.number, ()):
            self._spaces.by_name[name].close()

    def end(self) -> None:
        """Close everything that is open, also what another thread has left open."""
        for space in self._spaces.by_name.values():
            space.abort()

    def give_back(self) -> None:
        """Give the pages back."""
        spaces, self._spaces.by_name = self._spaces.by_name, {}
        self.held_bytes = 0
        for space in spaces.values():
            space.destroy()

    def _open(self, moment: int) -> None:
        for name in self._layout.opens.get(moment, ()):
            self._spaces.by_name[name].open()

    def _manager(self, table: Table) -> LayerWorkspaceMgr:
        manager = LayerWorkspaceMgr(self._spaces)
        for kind, name in table.items():
            manager.set(kind, name)
        return manager

    def _take(self) -> None:
        self._spill = _spill()
        try:
            for name, nbytes in self._sizes.items():
                config = WorkspaceConfig(
                    initial_size=nbytes,
                    allocation="strict",
                    learning="none",
                    spill=self._spill,
                    reclaim=name in self._layout.stacks,
                    capture_numpy=False,
                )
                self._spaces.by_name[name] = OwnedWorkspace(
                    config, f"{self._owner}: {name}", resource=self._pool
                )
        except BaseException:
            self.give_back()
            raise
        spaces = self._spaces.by_name.values()
        self.held_bytes = sum(space.counters()["size"] for space in spaces)


def _spill() -> str:
    """Refuse to spill, unless all workspaces are told to."""
    told = get_debug_mode() is DebugMode.SPILL_EVERYTHING
    return "external" if told else "fail"


class _Spaces:
    """The workspaces of one program, by their names in its layout."""

    def __init__(self) -> None:
        self.by_name: dict[str, OwnedWorkspace] = {}

    def get(self, name: str) -> Workspace | None:
        return self.by_name.get(name)

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        return self.by_name[name]


class _ArrayRoom:
    """An array of bytes in a workspace."""

    __slots__ = ("_bytes", "address", "nbytes")

    def __init__(self, cells: npt.NDArray[np.uint8]) -> None:
        self._bytes = cells
        self.address: int = cells.__array_interface__["data"][0]
        self.nbytes = cells.nbytes

    def array(self, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        return self._bytes.view(dtype).reshape(shape)


@dataclass(frozen=True)
class _InWorkspaces:
    """A way in which tensors live in workspaces; see `memcfg.runtime.Way`."""

    name: str
    layout: Callable[[Walk], Layout]

    def order(self, graph: Graph) -> Sequence[int]:
        """Keep the order: no update can be followed by a lack of memory."""
        return graph_order(graph)

    def needed_bytes(self, walk: Walk) -> int:
        """Return the sum of the pages."""
        return sum(self.layout(walk).sizes(walk).values())

    def enough_bytes(self, walk: Walk) -> int:
        """Return that, and what the ends of the pages may cost."""
        sizes = self.layout(walk).sizes(walk)
        return with_margin(sum(sizes.values()), len(sizes))

    def placer(self, walk: Walk, device: Device, owner: str) -> Placer:
        """Make the placer."""
        layout = self.layout(walk)
        return WorkspacePlacer(walk, layout, layout.sizes(walk), device.pool, owner)


_WAYS: dict[WorkspaceMode, Way | None] = {
    WorkspaceMode.NONE: OwnBlocks(),
    WorkspaceMode.ENABLED: None,
    WorkspaceMode.SINGLE: _InWorkspaces("single", single_layout),
    WorkspaceMode.SEPARATE: _InWorkspaces("separate", separate_layout),
}


def execution_mode(mode: WorkspaceMode) -> Way | None:
    """Return how programs of a mode run; None where they are planned and compiled."""
    return _WAYS[mode]
