"""Named workspaces of a model: which kinds of arrays lie in which arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.config import EscapePolicy, LocationPolicy
from memcfg.errors import WorkspaceConfigError
from memcfg.nn.training._workspace_modes import separate_workspaces
from memcfg.runtime import ARENA, Buffer, Life, Placement, pack, state_bytes
from memcfg.workspaces import ArrayType, LayerWorkspaceMgr, WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.config import WorkspaceConfig
    from memcfg.runtime import Schedule

__all__ = ["NamedWorkspaces", "get_layer_workspaces"]

_PASSES = ("training", "inference")


class _Home(NamedTuple):
    """A workspace by name; None: arrays that have a buffer each."""

    name: str | None
    config: WorkspaceConfig | None


class _Piece(NamedTuple):
    """A tensor, or the scratch of an op, and when it lives in op numbers."""

    number: int
    is_scratch: bool
    life: Life


@dataclass(frozen=True)
class NamedWorkspaces:
    """A layout by what arrays are for; values can be compared.

    Parameters
    ----------
    homes : tuple of (ArrayType, _Home)
        The kinds that are configured. All others lie in the model's arena.
    """

    homes: tuple[tuple[ArrayType, _Home], ...]

    def __call__(self, schedule: Schedule) -> Placement:
        """Place everything: in each workspace bytes are used again."""
        homes = dict(self.homes)
        pieces: defaultdict[_Home | None, list[_Piece]] = defaultdict(list)
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
            offsets, height = pack([each.life for each in group])
            buffer, base = len(buffers), 0
            if home is None:
                buffer, base, arena = ARENA, state, state + height
            else:
                buffers.append(_buffer(home, height))
            for each, offset in zip(group, offsets, strict=True):
                places[each.is_scratch][each.number] = buffer, base + offset
        return Placement(tuple(buffers), places[False], places[True], arena)


def _buffer(home: _Home, nbytes: int) -> Buffer:
    """Return the arena of a workspace whose arrays need so many bytes."""
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
    """Say of all that a step makes what it is for, and when it lives."""
    kinds = separate_workspaces(schedule)
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
            yield kinds.type_of[tensor], _Piece(tensor, False, life)
        if nbytes := schedule.scratch(each):
            life = Life(each.number, each.number + 1, nbytes)
            yield kinds.scratch_of[each.number], _Piece(each.op, True, life)


def get_layer_workspaces(
    given: Any, training: WorkspaceMode, inference: WorkspaceMode
) -> tuple[NamedWorkspaces | None, NamedWorkspaces | None]:
    """Return the workspaces that `compile`'s argument names, by pass.

    Managers are read now: what is set in them later changes nothing. Raises TypeError,
    ValueError and WorkspaceConfigError.
    """
    if given is None:
        return None, None
    by_pass = given if isinstance(given, Mapping) else dict.fromkeys(_PASSES, given)
    if unknown := [name for name in by_pass if name not in _PASSES]:
        raise ValueError(
            f"layer_workspaces has managers for 'training' and 'inference', not for "
            f"{unknown[0]!r}"
        )
    found = [_read(by_pass.get(name), name) for name in _PASSES]
    modes = (training, inference)
    for name, workspaces, mode in zip(_PASSES, found, modes, strict=True):
        if workspaces is not None and mode is not WorkspaceMode.ENABLED:
            raise ValueError(
                f"layer_workspaces says where the arrays of {name} lie, and so does "
                f"{name}_workspace_mode={mode.value!r}: leave one of them out"
            )
    _check_together([home for each in found if each for _, home in each.homes])
    return found[0], found[1]


def _read(manager: Any, name: str) -> NamedWorkspaces | None:
    if manager is None:
        return None
    if not isinstance(manager, LayerWorkspaceMgr):
        raise TypeError(
            "layer_workspaces is a LayerWorkspaceMgr, or a dict of them for 'training' "
            f"and 'inference', not {manager!r}"
        )
    homes = tuple(
        (kind, _Home(manager.workspace_name(kind), manager.configuration(kind)))
        for kind in ArrayType
        if manager.has_configuration(kind)
    )
    if not homes:
        raise ValueError(
            f"the LayerWorkspaceMgr for {name} has no workspaces: call set(kind, name),"
            " default_workspace(name) or default_no_workspace()"
        )
    return NamedWorkspaces(homes)


def _check_together(homes: list[_Home]) -> None:
    """Refuse settings that a planned workspace has no use for, and two of one name."""
    configs: dict[str, WorkspaceConfig | None] = {}
    paths: dict[str, str] = {}
    for name, config in homes:
        if name is None:
            continue
        if configs.setdefault(name, config) != config:
            raise WorkspaceConfigError(
                f"workspace {name!r} has two configurations in layer_workspaces: give "
                "it the same one everywhere"
            )
        if config is None:
            continue
        _check_config(name, config)
        if config.path is not None and paths.setdefault(config.path, name) != name:
            raise WorkspaceConfigError(
                f"workspaces {paths[config.path]!r} and {name!r} both have the file "
                f"{config.path!r}: give each its own"
            )


def _check_config(name: str, config: WorkspaceConfig) -> None:
    if config.circular:
        what = "reset='end_of_buffer'"
    elif config.on_escape is not EscapePolicy.RETIRE:
        what = f"on_escape={config.on_escape.value!r}"
    else:
        what = ""
    if what:
        raise WorkspaceConfigError(
            f"workspace {name!r} of a model is planned, and its arrays never outlive "
            f"a step, so {what} has no meaning: leave it out"
        )
    if config.location is LocationPolicy.MMAP and not config.initial_size:
        raise WorkspaceConfigError(
            f"workspace {name!r} lies in a file whose length nobody says: give an "
            "initial_size"
        )
