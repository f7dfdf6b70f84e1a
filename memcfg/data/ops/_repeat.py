"""A step that makes pass after pass over another step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._closing import closing
from memcfg.data.ops._node import INFINITE, UnaryNode
from memcfg.data.ops._shuffle import Shuffle
from memcfg.data.rows._rows import RowStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import RowNumbers

__all__ = ["Repeat"]

_END = object()
_MAX = 2**63 - 1  # a cardinality is an int64


@dataclass(frozen=True, eq=False)
class Repeat(UnaryNode):
    """Pass after pass over another step; a negative count ends with an empty one."""

    count: int
    name: str

    @property
    def cardinality(self) -> int:
        """`count` times that of the step before."""
        before = self.source.cardinality
        if self.count == 0 or before == 0:
            return 0
        if self.count < 0:
            return INFINITE
        return before if before < 0 else min(before * self.count, _MAX)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin the first pass, if there is one."""
        if self.count == 0 or self.source.cardinality == 0:
            return iter(())
        if self.count == 1:
            return self.source.elements(run)
        part = run.part()
        return self._passes(self.source.elements(part), part, run)

    @property
    def has_rows(self) -> bool:
        """As the step before, unless there is no pass or nothing in it."""
        return self.source.has_rows and self.cardinality != 0

    def rows(self, run: Run) -> RowStream:
        """Begin the first pass over row numbers."""
        stream = self.source.rows(run)
        return RowStream(stream.source, self._row_passes(stream.chunks, run))

    def _passes(self, elements: Iterator[Any], part: Run, run: Run) -> Iterator[Any]:
        for more in self._counted(run):
            try:
                with closing(elements):
                    first = next(elements, _END)
                    if first is _END and self.count < 0:
                        return
                    if first is not _END:
                        yield first
                        del first
                        yield from elements
            finally:
                part.close()
            if more:
                part = run.part()
                elements = self.source.elements(part)
        with closing(elements):  # the pass that nobody reads
            part.close()

    def _row_passes(
        self, chunks: Iterator[RowNumbers], run: Run
    ) -> Iterator[RowNumbers]:
        for more in self._counted(run):
            empty = True
            for chunk in chunks:
                empty = False
                yield chunk
            if empty and self.count < 0:
                return
            if more:
                chunks = self.source.rows(run).chunks

    def _counted(self, run: Run) -> Iterator[bool]:
        """Yield once for each pass whether another is begun when it ends."""
        fused = self.count == 1 or isinstance(self.source, Shuffle)
        begun = 0
        while begun != self.count and not run.closed:
            begun += 1
            yield begun != self.count or not fused
