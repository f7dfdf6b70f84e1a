"""The bytes that values have one after another in place, to be placed by a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Graph
    from memcfg.plan.search._request import Layout

_Instances = list[tuple[int, int, int, int, bool, int]]


class Life(NamedTuple):
    """Bytes from the step that makes them to the last that reads them."""

    begin: int  # -1: there from the start
    end: int  # the number of steps: to the end
    size: int
    tensor: int = -1  # the first that has them


class LivesPlaced(NamedTuple):
    """A layout of the same instances with other offsets."""

    instances: _Instances
    scratch: list[int]


class Lives:
    """The lives of a layout without those of the state.

    Attributes
    ----------
    lives : list of Life
        In the order in which they begin.
    """

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.lives: list[Life] = []
        self._instances = layout.instances
        self._of: dict[int, int] = {}  # instance -> the life that its bytes are
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
        """Give each life an offset."""
        instances = [
            (*each[:5], each[5] if each[4] else offsets[self._of[number]])
            for number, each in enumerate(self._instances)
        ]
        return LivesPlaced(instances, scratch)
