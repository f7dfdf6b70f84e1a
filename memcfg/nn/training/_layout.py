"""In which workspaces the tensors of a step live, and when those are open.

Owns the value and how large each workspace must be. Refuses to choose: `_single` and
`_separate` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.runtime import Moment, Walk
    from memcfg.workspaces import ArrayType

__all__ = ["FEEDING", "Layout", "Table"]

Table = Mapping["ArrayType", str]  # where a visit's arrays live, by what they are for
FEEDING = -1  # the moment before the first op, in which the inputs are fed


@dataclass(frozen=True)
class Layout:
    """Workspaces of a walk.

    Parameters
    ----------
    tables : sequence of mapping
        The workspace of each type of array, in one visit or in several.
    table_of : mapping of int to int
        For each moment, and for `FEEDING`, the place of its table.
    type_of : mapping of int to ArrayType
        What each tensor is for; it lives where its maker's table says.
    scratch_of : mapping of int to ArrayType
        What the scratch of each moment is for.
    opens, closes : mapping of int to tuple of str
        The workspaces that are opened before a moment and closed after it. Those that
        nothing closes are open until the step ends.
    stacks : frozenset of str
        The workspaces in which what was made last gives its space back at once.
    """

    tables: tuple[Table, ...]
    table_of: Mapping[int, int]
    type_of: Mapping[int, ArrayType]
    scratch_of: Mapping[int, ArrayType]
    opens: Mapping[int, tuple[str, ...]]
    closes: Mapping[int, tuple[str, ...]]
    stacks: frozenset[str] = frozenset()

    def home(self, moment: int, kind: ArrayType) -> str:
        """Return the workspace of what is made at a moment.

        Parameters
        ----------
        moment : int
            The moment's number, or `FEEDING`.
        kind : ArrayType
            What it is for.

        Returns
        -------
        str
            The workspace's name.
        """
        return self.tables[self.table_of[moment]][kind]

    def sizes(self, walk: Walk) -> dict[str, int]:
        """Return how large each workspace must be.

        Parameters
        ----------
        walk : Walk
            The walk that the layout is of.

        Returns
        -------
        dict of str to int
            The most bytes that it ever holds between being opened and closed.
        """
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
