"""Elements of many inner datasets: `Dataset.interleave` and `flat_map`.

The cycle is tf.data's: so many slots, each with a pass over an inner dataset. A block
of elements is taken from one slot after the other, and a slot whose pass has ended has
the next pass when it comes again. A pass of which exactly a block was left ends with an
empty block.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from memcfg._cached import cached_property
from memcfg._checks import count
from memcfg._core import scope_out
from memcfg.data._options import Options
from memcfg.data.elements._spec import vague
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.engine._condition import raise_failure
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.engine._parallel_step import StepThreads, checked_calls, is_ordered
from memcfg.data.engine._run import closing, cores, kept
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node, UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future

# What was taken; whether that is the end of the pass; what was raised behind it.
_Block: TypeAlias = tuple[list[Any], bool, BaseException | None]

_AHEAD = 3  # threads of TensorFlow for each slot of its cycle
_END = object()


@dataclass(frozen=True, eq=False)
class Interleave(UnaryNode):
    """Elements of the datasets that a function makes of elements, in a cycle.

    A cycle of one slot is `flat_map`.
    """

    map_func: Callable[[Any], Node]
    cycle_length: int | None = None
    block_length: int | None = None
    num_parallel_calls: int | None = None
    deterministic: bool | None = None
    name: str = "interleave"

    def __post_init__(self) -> None:
        if self.cycle_length not in (None, AUTOTUNE):
            count(self.cycle_length, "cycle_length")
        if self.block_length is not None:
            count(self.block_length, "block_length")
        calls = checked_calls(self.num_parallel_calls, self.deterministic)
        cycle = self.cycle_length
        if calls is not None and cycle not in (None, AUTOTUNE) and calls > cycle:
            raise ValueError(
                f"num_parallel_calls is at most cycle_length ({cycle}), not {calls}"
            )

    @cached_property
    def element_spec(self) -> Any:
        """What the dataset made of the first element has; sizes are None."""
        with DatasetIterator(self.source, Options(), probing=True) as elements:
            for element in elements:
                return vague(self.map_func(element).element_spec)
        raise ValueError("there is no element to tell the element_spec from")

    is_probed = True

    @property
    def cardinality(self) -> int:
        """Unknown; with threads, infinite where the step before is, as in tf.data."""
        if self.num_parallel_calls is None:
            return UNKNOWN
        return INFINITE if self.source.cardinality == INFINITE else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        elements = kept(self.source.elements(run))
        passes = (_InnerPass(element, self.map_func, run) for element in elements)
        slots, block_length = self._slots(cores()), self.block_length or 1
        if self.num_parallel_calls is None:
            return _in_cycle(passes, slots, block_length, run)
        ordered = is_ordered(run, self.deterministic)
        threads = StepThreads(run, self.num_parallel_calls, self.name)
        return _flattened(
            _PreparedBlocks(passes, threads, slots, block_length, run, ordered=ordered)
        )

    def _slots(self, processors: int) -> int:
        if self.cycle_length not in (None, AUTOTUNE):
            return self.cycle_length
        if self.num_parallel_calls is None:
            return processors
        if self.num_parallel_calls == AUTOTUNE:
            return -(-processors // _AHEAD)
        return min(self.num_parallel_calls, processors)


class _InnerPass:
    """The pass over the dataset that is made of an element."""

    def __init__(self, element: Any, map_func: Callable[[Any], Node], run: Run) -> None:
        self._element = element
        self._map_func = map_func
        self._run = run.part()
        self._elements: Iterator[Any] | None = None
        self._taking = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._elements is None:
            self._elements = self._begin()
        return next(self._elements)

    def take(self, length: int) -> _Block:
        taken: list[Any] = []
        failure: BaseException | None = None
        with self._taking:
            if not self._closed:
                try:
                    with self._run.allocator():  # which tells why there is no memory
                        taken.extend(islice(self, length))  # keeps what came before
                except BaseException as error:
                    failure = error
        if self._closed:
            self.close()
        try:
            return taken, len(taken) < length, failure
        finally:
            del failure  # it refers to this frame by now

    def close(self) -> None:
        """End the pass, and all that it started; a thread that takes does it then."""
        self._closed = True
        self._run.close()
        if self._taking.acquire(blocking=False):
            try:
                with closing(self._elements or iter(())):
                    self._elements = iter(())
            finally:
                self._taking.release()

    def _begin(self) -> Iterator[Any]:
        try:
            with scope_out():
                node = self._map_func(self._element)
            return node.elements(self._run)
        except StopIteration as error:  # it would look like the end
            raise RuntimeError("a map_func raised StopIteration") from error


def _in_cycle(
    passes: Iterator[_InnerPass], unused: int, block_length: int, run: Run
) -> Iterator[Any]:
    """Yield the elements of inner passes, in the consumer's thread."""
    slots: deque[_InnerPass | None] = deque()  # the next first; None: it is free
    try:
        while not run.closed and (unused or slots):
            inner = None if unused else slots.popleft()
            unused -= unused > 0
            inner = inner or next(passes, None)
            if inner is None:
                unused, slots = 0, deque(filter(None, slots))
                continue
            slots.append(inner)
            for _ in range(block_length):
                element = next(inner, _END)
                if element is _END:
                    slots[-1] = None
                    inner.close()
                    break
                yield element
                del element
    finally:
        with closing(passes, *filter(None, slots)):
            pass


def _flattened(blocks: _PreparedBlocks) -> Iterator[Any]:
    """Yield the elements of blocks that threads prepare."""
    with closing(blocks):
        for taken in blocks:
            taken.reverse()
            while taken:
                yield taken.pop()


class _PreparedBlocks:
    """Blocks that threads prepare: the next one of each slot, and no more.

    So one thread at a time is at an inner pass, and elements come in the order that
    they have without threads.
    """

    def __init__(
        self,
        passes: Iterator[_InnerPass],
        threads: StepThreads,
        unused: int,
        block_length: int,
        run: Run,
        *,
        ordered: bool,
    ) -> None:
        self._passes = passes
        self._threads = threads
        self._unused = unused  # slots that nothing was prepared for yet
        self._block_length = block_length
        self._run = run
        self._ordered = ordered
        self._futures: dict[Future[_Block], _InnerPass | None] = {}  # the next first
        self.failure: BaseException | None = None  # behind the last block

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        raise_failure(self)
        while self._unused:
            self._unused = self._unused - 1 if self._prepare(None) else 0
        if not self._futures or self._run.closed:
            raise StopIteration
        began = perf_counter()
        future = next(iter(self._futures))
        if not self._ordered:
            future = self._threads.pool.first_done(self._futures)
        taken, ended, self.failure = future.result()
        waited = perf_counter() - began
        inner = self._futures.pop(future)
        if ended and inner is not None:
            inner.close()
        if self.failure is None:
            self._prepare(None if ended else inner)
        self._threads.delivered(len(taken), waited)
        return taken

    def _prepare(self, inner: _InnerPass | None) -> bool:
        """Have the next block of a slot prepared; False: there is nothing to take."""
        try:
            inner = inner or next(self._passes, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it comes when the block does
            self._futures[self._threads.pool.submit(partial(_fail, error))] = None
            return False
        if inner is None:
            return False
        future = self._threads.pool.submit(partial(inner.take, self._block_length))
        self._futures[future] = inner
        return True

    def close(self) -> None:
        self._threads.stop(wait=False)
        futures, self._futures = self._futures, {}
        with closing(self._passes, *filter(None, futures.values())):
            pass


def _fail(error: BaseException) -> _Block:
    raise error
