"""`Dataset.cache`, in memory or in a file.

In memory, elements that do not fit the limit are not kept. Each pass reads them again,
if the steps before repeat their elements.
"""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np

from memcfg._caller import outside
from memcfg._core import scope_out
from memcfg._core._holders import GivingOrder, list_holder, undemanding
from memcfg.data._pipeline_report import StageReport
from memcfg.data.elements._convert import read_only
from memcfg.data.elements._held import HeldBytes
from memcfg.data.elements._slab import Layout, Slab, block_bytes, kinds_of
from memcfg.data.elements._structure import map_structure
from memcfg.data.engine._run import closing, data_allocator
from memcfg.data.ops._batch import Batch
from memcfg.data.ops._cache_file import CacheWriter, read_cache
from memcfg.data.ops._map import Map
from memcfg.data.ops._node import UnaryNode, require_arrays
from memcfg.data.ops._order import Select

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.data.elements._slab import Row
    from memcfg.data.engine._run import Run
    from memcfg.data.ops._node import Node
    from memcfg.memory import NumpyAllocator


# A refused request costs about 1 ms, and a shuffle makes one for each element.
_PART = 64

_FEWEST = 4  # elements of a slab; larger ones lie by themselves


@dataclass(frozen=True, eq=False)
class Cache(UnaryNode):
    """The elements of another step, cached by the first complete pass.

    A pass that ends before the source does caches nothing, as in tf.data. In memory,
    concurrent passes each record the elements, and the first to end is kept.
    """

    filename: str = ""
    name: str = "cache"
    _memory: list[_Kept] = field(init=False, repr=False, default_factory=list)
    _warned: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        require_arrays(self.source, self.name)
        path = os.fsdecode(os.fspath(self.filename))
        object.__setattr__(self, "filename", path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the step without the cached elements."""
        return type(self), (self.source, self.filename, self.name)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass over the cache, or over the source if there is none."""
        if self._memory:
            return self._again(self._memory[0], run)
        if self.filename and os.path.exists(self.filename):
            source = self.source
            spec = None if source.is_probed else source.element_spec
            return read_cache(self.filename, lambda: source.element_spec, spec)
        elements = self.source.elements(run)
        return elements if run.probing else self._recorded(elements, run)

    def _recorded(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        path = self.filename
        repeats = self.source.repeats and run.options.deterministic is not False
        writer = (
            CacheWriter(path) if path else _MemoryRecord(self._memory, run, repeats)
        )
        with closing(elements), writer as record:
            for element in elements:
                record.add(element)
                try:
                    yield element
                except GeneratorExit:  # the reader ends the pass early
                    self._warn(record.count)
                    raise
            record.finish()

    def _again(self, kept: _Kept, run: Run) -> Iterator[Any]:
        """Hand out what is kept, and read the rest again."""
        number = 0
        while (element := kept.get(number)) is not None:
            yield element
            del element
            number += 1
        if number >= kept.count:
            return
        run.stages.append(lambda: kept.report(self.name))
        may_add = kept.is_of(run)
        elements, adder = _beginning_at(self.source, number).elements(run), _Adder(kept)
        with closing(elements, adder):
            for element in elements:
                if may_add:
                    may_add = adder.add(number, element)
                number += 1
                yield element
                del element

    def _warn(self, count: int) -> None:
        if not count or self._warned:
            return
        object.__setattr__(self, "_warned", True)
        warn(
            f"a pass over {self.name!r} ended before its data did, so nothing was "
            "cached: call take() before cache(), or read to the end",
            stacklevel=outside(),
        )


class _Kept:
    """Elements in memory, by their number; those that were added last may go.

    Small ones lie in slabs, and go with their slab. Nothing here waits: it may be
    called amid an allocation, in any thread. Each change is one operation of a
    dictionary.
    """

    def __init__(self, run: Run, *, may_drop: bool) -> None:
        self.count = 0  # elements of a whole pass
        self.may_drop = may_drop
        self.slab_bytes = block_bytes(run.resource)
        self._resource = run.resource
        self._elements: dict[int, Row | _Whole] = {}
        self._groups: dict[int, Slab | _Whole] = {}  # what goes together, in order
        self._layouts: dict[tuple[Any, ...], Layout] = {}  # by kinds of arrays
        self._numbers = itertools.count()
        if may_drop:
            list_holder(run.resource, self, GivingOrder.CACHE)

    def get(self, number: int) -> Any | None:
        """Return an element, or None if it is not kept."""
        kept = self._elements.get(number)
        return None if kept is None else kept.read()

    def has(self, number: int) -> bool:
        """Return whether an element is kept."""
        kept = self._elements.get(number)
        return kept is not None and kept.group.nbytes > 0

    def allocator(self) -> NumpyAllocator:
        """Return an allocator for arrays beside these, for one thread."""
        return data_allocator(self._resource)

    def is_of(self, run: Run) -> bool:
        """Return whether a pass has its arrays where these are."""
        return run.resource is self._resource

    def layout(self, element: Any) -> Layout:
        """Return the layout that elements with such arrays share."""
        kinds = kinds_of(element)
        known = self._layouts.get(kinds)
        if known is None or not known.is_of(element):  # of another structure
            known = self._layouts[kinds] = Layout(element)
        return known

    def add_group(self, group: Slab | _Whole) -> None:
        """List what goes together."""
        self._groups[next(self._numbers)] = group

    def add(self, number: int, element: Row | _Whole) -> None:
        """List an element of a group."""
        self._elements[number] = element

    @property
    def spare_bytes(self) -> int:
        """The bytes of all elements."""
        return sum(group.nbytes for group in self._groups.copy().values())

    def give_back(self, nbytes: int) -> int:
        """Drop elements, the last ones first, and a part of all at least."""
        given, least = 0, len(self._groups) // _PART
        while given < nbytes or least > 0:
            least -= 1
            try:
                group = self._groups.popitem()[1]
            except KeyError:
                break
            given += group.drop()
            for number in group.numbers:
                known = self._elements.get(number)
                if known is not None and known.group is group:
                    self._elements.pop(number, None)
        return given

    def report(self, name: str) -> StageReport:
        """Tell how many elements are kept; all are taken to have the same bytes."""
        elements = self._elements.copy()
        kept, nbytes = len(elements), sum(each.nbytes for each in elements.values())
        missing = max(0, self.count - kept)
        return StageReport(
            name=name,
            autotuned=False,
            buffer_size=kept,
            items=self.count,
            waited_seconds=0.0,
            nbytes=nbytes,
            missing_bytes=nbytes * missing // kept if kept else 0,
        )


class _Whole:
    """An element by itself."""

    __slots__ = ("_element", "nbytes", "numbers")

    def __init__(self, element: Any, number: int, nbytes: int) -> None:
        self._element = element  # None: dropped
        self.nbytes = nbytes
        self.numbers = [number]

    @property
    def group(self) -> Self:
        """What goes with it."""
        return self

    def read(self) -> Any | None:
        """Return the element with read-only views; None if it was dropped."""
        element = self._element
        return None if element is None else map_structure(_given, element)

    def drop(self) -> int:
        """Free the element; return the bytes."""
        nbytes, self.nbytes, self._element = self.nbytes, 0, None
        return nbytes


class _Adder:
    """Copies elements of one pass to what is kept."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._layout: Layout | None = None  # of the element before
        self._slab: Slab | None = None  # with room, perhaps
        self._is_last = False  # whether there was no memory for a whole slab

    def add(self, number: int, element: Any) -> bool:
        """Keep a copy; False: there is no memory for it, and none is asked for.

        ResourceExhaustedError if all have to be kept.
        """
        kept = self._kept
        if kept.has(number):
            return True
        if self._layout is None or not self._layout.is_of(element):
            self._layout = kept.layout(element)
        layout = self._layout
        if not 0 < layout.nbytes <= kept.slab_bytes // _FEWEST:
            return self._add_whole(number, element, layout.nbytes)
        row = None if self._slab is None else self._slab.add(number, element, layout)
        if row is None:
            self.close()
            self._slab = self._new_slab(layout.nbytes)
            if self._slab is None:
                return False
            kept.add_group(self._slab)
            row = self._slab.add(number, element, layout)
        if row is not None:
            kept.add(number, row)
        return row is not None

    def _add_whole(self, number: int, element: Any, nbytes: int) -> bool:
        asking = undemanding() if self._kept.may_drop else nullcontext()
        try:
            with scope_out(), asking:
                copy = map_structure(_copied, element)
        except MemoryError:
            if not self._kept.may_drop:
                raise
            return False
        whole = _Whole(copy, number, nbytes)
        self._kept.add_group(whole)
        self._kept.add(number, whole)
        return True

    def _new_slab(self, row_bytes: int) -> Slab | None:
        """Return a slab for some rows; the first with fewer than others is the last."""
        if not self._is_last:
            count = self._kept.slab_bytes // row_bytes
            made = Slab.made(row_bytes, count)
            self._is_last = made is None or made.nbytes < count * row_bytes
            if made is not None:
                return made
        if self._kept.may_drop:
            return None
        with scope_out():
            return Slab(np.empty(row_bytes, np.uint8))

    def close(self) -> None:
        """Give back what the last slab does not use.

        A pass may end outside of its allocator: closed early, or garbage-collected.
        """
        if self._slab is not None:
            with self._kept.allocator():
                self._slab.trim()
            if not self._kept.may_drop:
                self._slab.seal()
        self._slab = None


class _MemoryRecord:
    """The elements of a pass in memory, with the interface of `CacheWriter`."""

    def __init__(self, memory: list[_Kept], run: Run, repeats: bool) -> None:
        self._memory = memory
        self._kept = _Kept(run, may_drop=repeats)
        self._adder = _Adder(self._kept)
        self._adds = True

    @property
    def count(self) -> int:
        return self._kept.count

    def add(self, element: Any) -> None:
        if self._adds:
            self._adds = self._adder.add(self._kept.count, element)
        self._kept.count += 1

    def finish(self) -> None:
        self._adder.close()
        self._memory.append(self._kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _beginning_at(node: Node, number: int) -> Node:
    """Return a step without its first elements; functions are not called for them."""
    if number == 0:
        return node
    if isinstance(node, Map | Batch):
        size = node.batch_size if isinstance(node, Batch) else 1
        result = object.__new__(type(node))
        vars(result).update(
            vars(node), source=_beginning_at(node.source, size * number)
        )
        return result
    return Select(node, number, None, 1, "skip")


def _copied(leaf: Any) -> Any:
    if type(leaf) is np.bytes_:
        return HeldBytes(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = np.array(leaf)
    copy.flags.writeable = False  # views of it cannot be made writeable either
    return copy


def _given(leaf: Any) -> Any:
    if type(leaf) is HeldBytes:
        return leaf.value
    return read_only(leaf) if isinstance(leaf, np.ndarray) else leaf
