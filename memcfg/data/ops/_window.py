"""`Dataset.window`: datasets of elements that follow one another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg._checks import count, flag
from memcfg._core import scope_out
from memcfg.data.elements._spec import DatasetSpec, spec_of, vague
from memcfg.data.elements._structure import flatten, map_structure, pack
from memcfg.data.engine._run import closing
from memcfg.data.ops._node import Node, UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run

_END = object()


@dataclass(frozen=True, eq=False)
class Window(UnaryNode):
    """A dataset of each component of elements that follow one another.

    The buffer holds the elements between the first and the last of a window. They are
    arrays of the pool, and a window keeps those that it consists of.
    """

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset: Callable[[Node], Any]  # makes a dataset of a step
    name: str

    def __post_init__(self) -> None:
        for name in ("size", "shift", "stride"):
            object.__setattr__(self, name, count(getattr(self, name), name))
        flag(self.drop_remainder, "drop_remainder")

    @property
    def element_spec(self) -> Any:
        return map_structure(DatasetSpec, self.source.element_spec)

    has_datasets = True

    @property
    def cardinality(self) -> int:
        before = self.source.cardinality
        if before < 0:
            return before
        if not self.drop_remainder:
            return -(-before // self.shift)
        rest = before - self._reach
        return rest // self.shift + 1 if rest >= 0 else 0

    @property
    def _reach(self) -> int:
        """The number of elements from the first to the last of a window."""
        return (self.size - 1) * self.stride + 1

    def elements(self, run: Run) -> Iterator[Any]:
        return self._windows(self.source.elements(run), run)

    def _windows(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        buffer: deque[Any] = deque()
        with closing(elements):
            while not run.closed:
                with scope_out():
                    buffer.extend(islice(elements, self._reach - len(buffer)))
                if not buffer or (self.drop_remainder and len(buffer) < self._reach):
                    return
                yield self._window(list(islice(buffer, 0, None, self.stride)))
                skipped = self.shift - len(buffer)
                for _ in range(min(self.shift, len(buffer))):
                    buffer.popleft()
                with scope_out():
                    for _ in range(skipped):
                        if next(elements, _END) is _END:
                            break

    def _window(self, elements: list[Any]) -> Any:
        columns = zip(*map(flatten, elements), strict=True)
        known = not self.source.is_probed
        spec = self.source.element_spec if known else vague(spec_of(elements[0]))
        datasets = [
            self.dataset(_Held(list(column), spec, self.name))
            for column, spec in zip(columns, flatten(spec), strict=True)
        ]
        return pack(elements[0], datasets)


@dataclass(frozen=True, eq=False)
class _Held(Node):
    """The elements of a window."""

    held: list[Any]
    spec: Any
    name: str

    @property
    def element_spec(self) -> Any:
        return self.spec

    @property
    def cardinality(self) -> int:
        return len(self.held)

    def elements(self, run: Run) -> Iterator[Any]:
        return iter(self.held)
