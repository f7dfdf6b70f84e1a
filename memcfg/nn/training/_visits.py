"""The visits of a step: one layer after the other, forward and then backward.

Owns the reading of a walk as visits. Refuses memory. An op belongs to the layer that
the first part of its name says; updates, and sums of gradients, belong to the visit in
which they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memcfg.graph import Op
    from memcfg.runtime import Walk

__all__ = ["Visit", "visits_of"]


class Visit(NamedTuple):
    """A layer at work: moments of a walk that follow one another.

    Parameters
    ----------
    layer : str
        The layer's name, or that of an op of no layer, such as ``"loss"``.
    phase : str
        ``"forward"``, ``"backward"`` or ``"update"``.
    first, last : int
        Its moments, the last one included.
    """

    layer: str
    phase: str
    first: int
    last: int


def visits_of(walk: Walk) -> list[Visit]:
    """Find the visits of a walk.

    Parameters
    ----------
    walk : Walk
        A program's walk.

    Returns
    -------
    list of Visit
        In order; each moment is in one.
    """
    visits: list[Visit] = []
    for moment in walk.moments:
        op = walk.graph.ops[moment.op]
        here = (_layer(op), op.phase)
        if visits and (_joins(op) or here == visits[-1][:2]):
            visits[-1] = visits[-1]._replace(last=moment.number)
        else:
            visits.append(Visit(*here, moment.number, moment.number))
    return visits


def _layer(op: Op) -> str:
    return op.name.partition("/")[0]


def _joins(op: Op) -> bool:
    return op.phase == "update" or (op.phase == "backward" and "/" not in op.name)
