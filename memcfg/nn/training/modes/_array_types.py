"""The purpose of each array of a step, as DL4J's array types."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.workspaces import ArrayType

if TYPE_CHECKING:
    from memcfg.graph import Graph, Op
    from memcfg.runtime import Schedule

__all__ = ["ArrayTypes", "Visit", "array_types", "visits_of"]

_WORKING = {
    "forward": ArrayType.FF_WORKING_MEM,
    "backward": ArrayType.BP_WORKING_MEM,
    "update": ArrayType.UPDATER_WORKING_MEM,
}


class ArrayTypes(NamedTuple):
    """Array types of the tensors, and of the ops' scratch by op number."""

    tensors: dict[int, ArrayType]
    scratch: dict[int, ArrayType]


class Visit(NamedTuple):
    """A run of consecutive ops in a schedule that belong to one layer."""

    layer: str
    phase: str
    first: int
    last: int


def visits_of(schedule: Schedule) -> list[Visit]:
    """Return the visits of a schedule, in order."""
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


def array_types(schedule: Schedule) -> ArrayTypes:
    """Classify everything that a step makes by what reads it.

    A tensor is its layer's working memory unless an op outside of the visit that
    makes it reads it.
    """
    graph = schedule.graph
    last = dict.fromkeys(range(len(graph.tensors)), len(schedule.ops))
    for each in schedule.ops:
        last |= dict.fromkeys(each.ends, each.number)
    tensors = dict.fromkeys(schedule.fed, ArrayType.INPUT)
    for visit in visits_of(schedule):
        row = schedule.ops[visit.first : visit.last + 1]
        own = {each.op for each in row}
        for each in row:
            for tensor in each.makes:
                phase = graph.ops[each.op].phase
                if phase == "update" or last[tensor] <= visit.last:
                    kind = _WORKING[phase]
                elif phase == "backward":
                    kind = ArrayType.ACTIVATION_GRAD
                elif tensor in graph.keep or _is_read_forward(graph, tensor, own):
                    kind = ArrayType.ACTIVATIONS
                else:
                    kind = ArrayType.FF_CACHE
                tensors[tensor] = kind
    phases = (graph.ops[each.op].phase for each in schedule.ops)
    return ArrayTypes(tensors, {i: _WORKING[phase] for i, phase in enumerate(phases)})


def _is_read_forward(graph: Graph, tensor: int, visit: set[int]) -> bool:
    """Return whether another visit of the forward phase reads a tensor."""
    return any(
        graph.ops[i].phase == "forward" and i not in visit
        for i in graph.consumers[tensor]
    )
