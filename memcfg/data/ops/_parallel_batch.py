"""Batches made by several threads, for a parallel map or a parallel batch.

A batch is divided into parts of enough rows that submitting a part costs little
compared to the function; for a quick function a part is the whole batch. Mapped
elements are written directly into their rows. A batch lies in a block that is reused
when the consumer has released the batch; temporaries lie in a workspace of the thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import scope_out
from memcfg.data.elements._convert import apply
from memcfg.data.elements._structure import flatten, is_unpacked, map_structure
from memcfg.data.engine._batch_blocks import BlockPool, ScratchPool
from memcfg.data.engine._condition import raise_failure
from memcfg.data.engine._parallel_step import (
    SharedSource,
    StepThreads,
    chunk_length,
    drop,
)
from memcfg.data.engine._run import closing
from memcfg.data.ops._batch_maker import BatchArrays, Form, stacked_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future
    from memcfg.data.ops._batch_maker import StackingMaker
    from memcfg.data.rows._rows import ElementReader

_FIRST_PARTS, _MAX_PARTS = 8, 64  # initial and max. parts of a batch


@dataclass(slots=True)
class _Part:
    """The result of a task: consecutive rows of a batch."""

    begin: int  # the first row
    count: int = 0
    elements: list[Any] | None = None  # None: they are written into their rows
    failure: BaseException | None = None
    seconds: float = 0.0  # per element


@dataclass(slots=True, eq=False)
class _PendingBatch:
    """A batch whose parts threads are making."""

    futures: list[Future[_Part]] = field(default_factory=list)
    arrays: BatchArrays | None = None  # None: elements are collected
    parts: list[_Part] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether all parts are done."""
        return all(future.done for future in self.futures)

    def wait(self) -> Self:
        if not self.parts:
            self.parts = [future.result() for future in self.futures]
        return self

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.seconds * part.count for part in self.parts)

    @property
    def failed(self) -> _Part | None:
        """The first part, in the order of the elements, that raised an exception."""
        return next((part for part in self.parts if part.failure is not None), None)

    def batch(self) -> Any:
        collected = [part.elements is not None for part in self.parts if part.count]
        if self.arrays is None or any(collected):
            return stacked_elements(list(self.elements()))
        return self.arrays.batch(self.count)

    def elements(self) -> Iterator[Any]:
        for part in self.parts:
            if part.elements is not None:
                yield from part.elements
            elif self.arrays is not None:
                yield from self.arrays.elements(part.begin, part.begin + part.count)


class _BatchAssembler:
    """Makes parts of batches in threads."""

    def __init__(
        self,
        run: Run,
        source: SharedSource[ElementReader],
        function: Callable[..., Any] | None,
        size: int,
        name: str,
    ) -> None:
        # None if elements have text or may be too few for a whole batch: they are
        # collected then.
        self.form: Form | None = None
        self.allocation_failed = False  # if set, parts read nothing
        self.blocks = BlockPool(run, name)
        self.scratches = ScratchPool(run)
        self._run = run
        self._source = source
        self._function = function
        self._size = size

    def part(self, pending: _PendingBatch, begin: int, size: int, number: int) -> _Part:
        """Make a part; `number` sets the order of reading."""
        part = _Part(begin)
        workspace = self.scratches.borrow()
        with self._source.failing(part), self._run.allocator(), workspace:
            self._make(part, pending, size, number)
        self.scratches.release(workspace)
        return part

    def _make(
        self, part: _Part, pending: _PendingBatch, size: int, number: int
    ) -> None:
        read = partial(self._read, pending, part.begin, size)
        part_read = self._source.read(number, read)
        if not (part_read and part_read[0]):
            return
        items, elements = part_read
        began = perf_counter()
        part.count = len(items)
        with closing(elements):
            if pending.arrays is None:
                with scope_out():
                    part.elements = [apply(self._function, each) for each in elements]
            else:
                self._write(part, pending.arrays, elements)
        part.seconds = (perf_counter() - began) / part.count

    def _read(
        self, pending: _PendingBatch, begin: int, size: int, reader: ElementReader
    ) -> tuple[list[Any], Iterator[Any]] | None:
        """Read the elements of a part; called in one thread at a time."""
        form = self.form
        if form is not None and not (begin or self.allocation_failed):
            block = self.blocks.borrow(form.nbytes(self._size))
            self.allocation_failed = block is None
            if block is not None:
                with block:
                    pending.arrays = BatchArrays(form, self._size)
                self.blocks.release(block)
        if self.allocation_failed or self._source.ended:
            return None
        # Collected elements outlive this cycle of the workspace.
        with scope_out() if pending.arrays is None else nullcontext():
            items = reader.read(size)
        if len(items) < size:
            self._source.ended = True
        return items, reader.elements(items)

    def _write(self, part: _Part, arrays: BatchArrays, elements: Iterator[Any]) -> None:
        first = next(elements)
        unpack = is_unpacked(first)
        first = apply(self._function, first)
        if not arrays.form.fits(first):  # this batch has another form, or is an error
            self._copy(part, first, elements)
            return
        arrays.put(part.begin, first)
        del first  # so that the next element can use its memory
        row, end = part.begin + 1, part.begin + part.count
        arrays.fill(row, elements, self._function, unpack=unpack, stop=end)

    def _copy(self, part: _Part, first: Any, elements: Iterator[Any]) -> None:
        """Collect copies of elements, some of which lie in the current workspace."""
        results = (first, *map(partial(apply, self._function), elements))
        with scope_out():
            copies = [map_structure(np.copy, result) for result in results]
        part.elements = [map_structure(lambda leaf: leaf[()], each) for each in copies]

    def stop(self, *, wait: bool) -> None:
        self.blocks.close()
        self.scratches.close()


class ParallelBatches:
    """An iterator over batches that threads, or the consumer, make."""

    def __init__(
        self,
        run: Run,
        reader: ElementReader,
        maker: StackingMaker,
        calls: int,
        name: str,
        deterministic: bool | None,
        batches: int,
    ) -> None:
        self._run = run
        self._maker = maker  # for batches made in the consumer's thread
        self._source = SharedSource(reader)
        self._threads = StepThreads(run, calls, name, deterministic, self._source)
        self._assembler = _BatchAssembler(
            run, self._source, maker.function, maker.max_size, name
        )
        run.on_close(self._assembler)
        blocks = self._assembler.blocks  # the report must not refer to the function
        blocks.budgeted = self._threads.tuned is not None
        self._threads.held = lambda: blocks.max_bytes
        self._pending: deque[_PendingBatch] = deque()  # in the order of the elements
        self._left = batches if batches >= 0 else 1 << 62
        self._parts = min(_FIRST_PARTS, maker.max_size)  # of a batch
        self._max_pending = 1 << 30  # lowered when an allocation fails

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        if self._threads.works:
            self._submit()
        if not self._pending:
            return self._made_alone(began)
        pending = self._chosen()
        if failed := pending.failed:
            self.close()
            for part in pending.parts:
                if part is not failed:
                    part.failure = None
            raise_failure(failed)
        if pending.count >= self._maker.min_size:
            return self._finished(pending, began)
        if not self._assembler.allocation_failed:
            self._end()
        self._do_with_less()
        return self._made_alone(began)

    def _submit(self) -> None:
        """Submit parts until all threads have work, and one more batch is waiting."""
        batch, parts, threads = self._maker.max_size, self._parts, self._threads
        size = -(-batch // parts)
        threads.ahead = min(self._max_pending, -(-threads.pool.size // parts) + 1)
        limit = min(threads.ahead, self._left)
        while len(self._pending) < limit and not self._source.ended:
            pending = _PendingBatch()
            for begin in range(0, batch, size):
                rows, number = min(size, batch - begin), self._source.reserve()
                task = partial(self._assembler.part, pending, begin, rows, number)
                pending.futures.append(threads.pool.submit(task))
            self._pending.append(pending)

    def _chosen(self) -> _PendingBatch:
        """Wait for the next batch to deliver."""
        if self._threads.ordered:
            return self._pending.popleft().wait()
        while True:
            for pending in self._pending:
                if pending.is_done and pending.wait().count == self._maker.max_size:
                    self._pending.remove(pending)
                    return pending
            futures = [one for pending in self._pending for one in pending.futures]
            left = [future for future in futures if not future.done]
            if not left:  # only smaller batches: the end, a failure or no memory
                return self._pending.popleft().wait()
            if not self._threads.pool.first_done(left).done:
                raise StopIteration

    def _finished(self, pending: _PendingBatch, began: float) -> Any:
        batch = pending.batch()
        if pending.arrays is None:
            self._learn(Form(next(pending.elements())), pending.count)
        self._note(pending.count, pending.seconds, perf_counter() - began)
        return batch

    def _made_alone(self, began: float) -> Any:
        batch = self._source.read_alone(self._make_here)
        if batch is None:
            self._end()
        rows = [len(leaf) for leaf in flatten(batch)]
        seconds = perf_counter() - began
        self._note(rows[0] if rows else 1, seconds, seconds)
        return batch

    def _make_here(self, reader: ElementReader) -> Any:
        maker, assembler = self._maker, self._assembler
        if assembler.form is None:
            known = maker.form is not None
            with nullcontext() if known else scope_out():
                batch = maker.make(reader)
            if maker.is_certain and maker.form is not None:
                self._learn(maker.form, self._maker.max_size)
            return batch
        block = assembler.blocks.borrow(assembler.form.nbytes(self._maker.max_size))
        if block is None:
            return maker.make(reader)
        try:
            with block:
                return maker.make(reader)
        finally:
            assembler.blocks.release(block)

    def _learn(self, form: Form, count: int) -> None:
        """Record the form of elements, if batches can be allocated before them."""
        size = self._maker.max_size
        if (self._maker.is_certain or count == size) and not form.has_text:
            self._assembler.form = form
            nbytes = form.nbytes(size)
            self._run.budget.note_item(nbytes)
            if self._threads.tuned is not None:
                self._threads.tuned.item_bytes = nbytes

    def _note(self, count: int, seconds: float, waited: float) -> None:
        """Record the seconds of a batch, and choose the parts of the next ones."""
        size = self._maker.max_size
        rows = chunk_length(seconds / count, size)
        self._parts = min(-(-size // rows), _MAX_PARTS)
        self._threads.delivered(count, waited)
        self._left -= 1

    def _do_with_less(self) -> None:
        """Keep fewer batches pending: an allocation failed."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        self._assembler.allocation_failed = False
        self._assembler.scratches.trim()
        self._max_pending = max(1, self._threads.ahead - 1)
        if self._threads.tuned is not None:
            self._threads.tuned.allocation_failed()

    def _end(self) -> NoReturn:
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the threads without waiting, and release all memory."""
        self._threads.stop(wait=False)
        self._assembler.stop(wait=False)
        for pending in self._pending:
            drop(pending.futures)
            for part in pending.parts:
                part.failure = None
        self._pending.clear()
