"""Workspace modes: the workspaces that hold the tensors of a step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memcfg.config import DebugMode, LocationPolicy
from memcfg.nn.training.modes._array_types import array_types
from memcfg.runtime import (
    ARENA,
    OWN_BUFFERS,
    Buffer,
    ExecutionMode,
    Life,
    Placement,
    graph_order,
    pack,
    state_bytes,
)
from memcfg.workspaces import ArrayType, WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.config import WorkspaceConfig
    from memcfg.runtime import Schedule

__all__ = ["SEPARATE", "SINGLE", "Home", "NamedWorkspaces", "execution_mode"]


class Home(NamedTuple):
    """A workspace by name; None if each array has a buffer of its own."""

    name: str | None
    config: WorkspaceConfig | None


class _Piece(NamedTuple):
    """A tensor or the scratch of an op, with its lifetime in op numbers."""

    number: int
    is_scratch: bool
    life: Life


@dataclass(frozen=True)
class NamedWorkspaces:
    """A layout by array type; layouts compare by value.

    Parameters
    ----------
    homes : tuple of (ArrayType, Home)
        The kinds that are configured. All others lie in the model's arena.
    reuses : bool, default True
        Whether bytes are used again within a step.
    """

    homes: tuple[tuple[ArrayType, Home], ...]
    reuses: bool = True

    def __call__(self, schedule: Schedule) -> Placement:
        """Place all tensors that the ops of a schedule make, and their scratch."""
        homes = dict(self.homes)
        pieces: defaultdict[Home | None, list[_Piece]] = defaultdict(list)
        for kind, piece in _pieces(schedule):
            pieces[homes.get(kind)].append(piece)
        buffers: list[Buffer] = []
        places: dict[bool, dict[int, tuple[int, int]]] = {False: {}, True: {}}
        state = arena = state_bytes(schedule.graph)
        for home, group in pieces.items():
            if home is not None and home.name is None:
                for each in group:
                    places[each.is_scratch][each.number] = len(buffers), 0
                    buffers.append(Buffer(each.life.nbytes))
                continue
            offsets, height = self._packed([each.life for each in group])
            buffer, base = len(buffers), 0
            if home is None:
                buffer, base, arena = ARENA, state, state + height
            else:
                buffers.append(_buffer(home, height))
            for each, offset in zip(group, offsets, strict=True):
                places[each.is_scratch][each.number] = buffer, base + offset
        return Placement(tuple(buffers), places[False], places[True], arena)

    def _packed(self, lives: list[Life]) -> tuple[list[int], int]:
        """Return the offsets in a workspace, and its size in bytes."""
        if self.reuses:
            return pack(lives)
        *offsets, end = accumulate((each.nbytes for each in lives), initial=0)
        return offsets, end


def _buffer(home: Home, nbytes: int) -> Buffer:
    """Return the arena of a workspace whose arrays need `nbytes` bytes."""
    name, config = str(home.name), home.config
    if config is None:
        return Buffer(nbytes, name, kept=True)
    size = max(nbytes, config.initial_size)
    if config.location is LocationPolicy.MMAP:
        limit = config.initial_size
        return Buffer(size, name, kept=True, limit_bytes=limit, config=config)
    size = max(size, config.min_size)
    return Buffer(size, name, kept=True, limit_bytes=config.max_size)


def _pieces(schedule: Schedule) -> Iterator[tuple[ArrayType, _Piece]]:
    """Return the type and the lifetime of everything that a step makes."""
    kinds = array_types(schedule)
    count = len(schedule.ops)
    ends = dict.fromkeys(range(len(schedule.graph.tensors)), count)
    for each in schedule.ops:
        ends |= dict.fromkeys(each.ends, each.number)
    for tensor in schedule.fed:
        life = Life(0, ends[tensor] + 1, schedule.rounded(tensor))
        yield ArrayType.INPUT, _Piece(tensor, False, life)
    for each in schedule.ops:
        for tensor in each.makes:
            life = Life(each.number, ends[tensor] + 1, schedule.rounded(tensor))
            yield kinds.tensors[tensor], _Piece(tensor, False, life)
        if nbytes := schedule.scratch(each):
            life = Life(each.number, each.number + 1, nbytes)
            yield kinds.scratch[each.number], _Piece(each.op, True, life)


# DL4J's names of workspaces, and the array types it keeps in them.
_ITERATION, _WORKING = "WS_ALL_LAYERS_ACT", "WS_LAYER_WORKING_MEM"
_NAMES = {
    ArrayType.INPUT: _ITERATION,
    ArrayType.ACTIVATIONS: _ITERATION,
    ArrayType.FF_CACHE: _ITERATION,
    ArrayType.UPDATER_WORKING_MEM: _ITERATION,
    ArrayType.ACTIVATION_GRAD: "WS_LAYER_ACT",
    ArrayType.FF_WORKING_MEM: _WORKING,
    ArrayType.BP_WORKING_MEM: _WORKING,
}
SEPARATE = NamedWorkspaces(
    tuple((kind, Home(name, None)) for kind, name in _NAMES.items())
)
SINGLE = NamedWorkspaces(
    tuple((kind, Home("LOOP_EXTERNAL", None)) for kind in ArrayType), reuses=False
)

_MODES: dict[WorkspaceMode, ExecutionMode | None] = {
    WorkspaceMode.NONE: OWN_BUFFERS,
    WorkspaceMode.ENABLED: None,
    WorkspaceMode.SINGLE: ExecutionMode("single", graph_order, SINGLE),
    WorkspaceMode.SEPARATE: ExecutionMode("separate", graph_order, SEPARATE),
}


def execution_mode(
    mode: WorkspaceMode,
    layers: NamedWorkspaces | None = None,
    debug_mode: DebugMode = DebugMode.DISABLED,
) -> ExecutionMode | None:
    """Return how programs are laid out; None if a policy plans them.

    In the debug modes that spill or bypass workspaces, each tensor has its own buffer.
    """
    result = _MODES[mode]
    if layers is not None:
        result = ExecutionMode("layer_workspaces", graph_order, layers)
    if result is None or debug_mode is DebugMode.DISABLED:
        return result
    return replace(OWN_BUFFERS, name=result.name)
