"""Lifetimes of buffers that in-place values share, for methods that place them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.search._request import Layout

_Instances = list[tuple[int, int, int, int, bool, int]]


class Life(NamedTuple):
    """A buffer from the step that writes it to the last step that reads it."""

    begin: int  # -1: live from the start
    end: int  # the number of steps: live to the end
    size: int
    tensor: int = -1  # the first tensor in the buffer


class LivesPlaced(NamedTuple):
    """A layout of the same instances with other offsets."""

    instances: _Instances
    scratch: list[int]


class Lives:
    """The lifetimes of a layout's buffers, without those of the state.

    Attributes
    ----------
    lives : list of Life
        The lifetimes in the order in which they begin.
    """

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.lives: list[Life] = []
        self._instances = layout.instances
        self._of: dict[int, int] = {}  # instance -> index of its life
        for number, each in enumerate(self._instances):
            tensor, begin, end, source, state, _ = each
            if state:
                continue
            if source >= 0:
                self._of[number] = self._of[source]
                life = self.lives[self._of[source]]
                self.lives[self._of[source]] = life._replace(end=max(life.end, end))
            else:
                self._of[number] = len(self.lives)
                size = graph.aligned_bytes[tensor]
                self.lives.append(Life(begin, end, size, tensor))

    def placed(self, offsets: Sequence[int], scratch: list[int]) -> LivesPlaced:
        """Return the layout with an offset for each life."""
        instances = [
            (*each[:5], each[5] if each[4] else offsets[self._of[number]])
            for number, each in enumerate(self._instances)
        ]
        return LivesPlaced(instances, scratch)
