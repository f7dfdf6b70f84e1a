"""`Dataset.cache`, in memory or in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np

from memcfg._caller import outside
from memcfg._core import scope_out
from memcfg.data.elements._convert import read_only
from memcfg.data.elements._structure import map_structure
from memcfg.data.engine._run import closing
from memcfg.data.ops._cache_file import CacheWriter, read_cache
from memcfg.data.ops._node import UnaryNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.data.engine._run import Run


@dataclass(frozen=True, eq=False)
class Cache(UnaryNode):
    """The elements of another step, cached by the first complete pass.

    A pass that ends before the source does caches nothing, as in tf.data. In memory,
    concurrent passes each record the elements, and the first to end is kept.
    """

    filename: str = ""
    name: str = "cache"
    _memory: list[list[Any]] = field(init=False, repr=False, default_factory=list)
    _warned: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        path = os.fsdecode(os.fspath(self.filename))
        object.__setattr__(self, "filename", path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the step without the cached elements."""
        return type(self), (self.source, self.filename, self.name)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass over the cache, or over the source if there is none."""
        if self._memory:
            return (map_structure(_given, element) for element in self._memory[0])
        if self.filename and os.path.exists(self.filename):
            source = self.source
            spec = None if source.is_probed else source.element_spec
            return read_cache(self.filename, lambda: source.element_spec, spec)
        elements = self.source.elements(run)
        return elements if run.probing else self._recorded(elements, run)

    def _recorded(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        path = self.filename
        writer = CacheWriter(path) if path else _MemoryRecord(self._memory)
        with closing(elements), writer as record:
            for element in elements:
                record.add(element)
                try:
                    yield element
                except GeneratorExit:  # the reader ends the pass early
                    self._warn(record.count)
                    raise
            record.finish()

    def _warn(self, count: int) -> None:
        if not count or self._warned:
            return
        object.__setattr__(self, "_warned", True)
        warn(
            f"a pass over {self.name!r} ended before its data did, and nothing was "
            "kept: put take() before cache(), or read to the end",
            stacklevel=outside(),
        )


class _MemoryRecord:
    """The elements of a pass in memory, with the interface of `CacheWriter`."""

    def __init__(self, memory: list[list[Any]]) -> None:
        self._memory = memory
        self._elements: list[Any] = []

    @property
    def count(self) -> int:
        return len(self._elements)

    def add(self, element: Any) -> None:
        with scope_out():
            self._elements.append(map_structure(_copied, element))

    def finish(self) -> None:
        self._memory.append(self._elements)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = np.array(leaf)
    copy.flags.writeable = False  # views of it cannot be made writeable either
    return copy


def _given(leaf: Any) -> Any:
    return read_only(leaf) if isinstance(leaf, np.ndarray) else leaf
