"""Steps that zip, enumerate or concatenate other steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._spec import merge, spec_of, vague
from memcfg.data.elements._structure import (
    flatten,
    is_flat_tuple,
    map_structure,
    packer,
)
from memcfg.data.engine._run import closing
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node
from memcfg.data.ops._sources import Slices
from memcfg.data.rows._rows import Rows, RowStream, in_order

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from memcfg.data.engine._run import Run

_END = object()


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Tuples of the elements of several steps."""

    sources: Any
    name: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(flatten(self.sources))

    @property
    def element_spec(self) -> Any:
        return map_structure(lambda source: source.element_spec, self.sources)

    @property
    def cardinality(self) -> int:
        counts = [source.cardinality for source in self.inputs]
        if UNKNOWN in counts:
            return UNKNOWN
        return min((count for count in counts if count != INFINITE), default=INFINITE)

    def elements(self, run: Run) -> Iterator[Any]:
        return self._joined([source.elements(run) for source in self.inputs])

    @property
    def has_rows(self) -> bool:
        """Whether all sources are rows in order."""
        return all(isinstance(source, Slices | Zip) for source in self.inputs) and all(
            source.has_rows for source in self.inputs
        )

    def rows(self, run: Run) -> RowStream:
        parts = map_structure(lambda source: source.rows(run).source, self.sources)
        count = min(rows.count for rows in flatten(parts))
        columns = map_structure(lambda rows: rows.columns, parts)
        return RowStream(Rows(columns, count), in_order(count))

    def _joined(self, passes: list[Iterator[Any]]) -> Iterator[Any]:
        with closing(*passes):
            leaves = zip(*passes, strict=False)
            if is_flat_tuple(self.sources):
                yield from leaves
            else:
                yield from map(packer(self.sources), leaves)


@dataclass(frozen=True, eq=False)
class Enumerate(Zip):
    """The elements of a step paired with numbers, of which there are enough."""

    @property
    def cardinality(self) -> int:
        return int(self.sources[1].cardinality)


@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """The elements of two steps, one after the other."""

    first: Node
    second: Node
    name: str

    def __post_init__(self) -> None:
        # A probe would run users' functions; the pass compares the specs then.
        if not self.is_probed:
            merge(self.first.element_spec, self.second.element_spec)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.first, self.second

    @property
    def element_spec(self) -> Any:
        return merge(self.first.element_spec, self.second.element_spec)

    @property
    def cardinality(self) -> int:
        counts = self.first.cardinality, self.second.cardinality
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)

    def elements(self, run: Run) -> Iterator[Any]:
        return self._joined(self.first.elements(run), run)

    def _joined(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        with closing(elements):
            spec = yield from self._compared(elements, None)
        elements = self.second.elements(run)
        with closing(elements):
            yield from self._compared(elements, spec)

    def _compared(
        self, elements: Iterator[Any], spec: Any
    ) -> Generator[Any, None, Any]:
        """Yield elements; compare the first one's specs if they were not known before.

        Returns the merged specs.
        """
        if self.is_probed:
            first = next(elements, _END)
            if first is _END:
                return spec
            own = vague(spec_of(first))
            spec = own if spec is None else merge(spec, own)
            yield first
            del first
        yield from elements
        return spec
