"""`Dataset.interleave` and `flat_map`: the elements of many inner datasets.

The cycle is tf.data's. It has a fixed number of slots, each with a pass over an inner
dataset. A block of elements is taken from each slot in turn. A slot whose pass has
ended starts the next pass at its next turn. A pass with exactly one block left ends
with an empty block.
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
from memcfg._core._machine import cores
from memcfg.data._options import Options
from memcfg.data.elements._spec import vague
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.engine._parallel_step import StepThreads, checked_calls
from memcfg.data.engine._run import closing, kept
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node, UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future, ThreadPool

# The elements taken; whether the pass has ended; the exception after them.
_Block: TypeAlias = tuple[list[Any], bool, BaseException | None]

_AHEAD = 3  # TensorFlow's threads for each slot of its cycle
_END = object()


@dataclass(frozen=True, eq=False)
class Interleave(UnaryNode):
    """The elements of the datasets that a function returns, interleaved in a cycle.

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
                f"num_parallel_calls must be at most cycle_length ({cycle}), not "
                f"{calls}"
            )

    @cached_property
    def element_spec(self) -> Any:
        """The specs of the first element's dataset; all sizes are None."""
        with DatasetIterator(self.source, Options(), probing=True) as elements:
            for element in elements:
                return vague(self.map_func(element).element_spec)
        raise ValueError("the dataset has no element from which to infer element_spec")

    is_probed = True
    has_datasets = False

    repeats = False  # it is not known of the datasets that elements become

    @property
    def cardinality(self) -> int:
        """Unknown; with threads, infinite if the source is, as in tf.data."""
        if self.num_parallel_calls is None:
            return UNKNOWN
        return INFINITE if self.source.cardinality == INFINITE else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        elements = kept(self.source.elements(run))
        passes = (_InnerPass(element, self.map_func, run) for element in elements)
        slots, block_length = self._slots(cores()), self.block_length or 1
        if self.num_parallel_calls is None:
            return _in_cycle(passes, slots, block_length, run)
        calls, deterministic = self.num_parallel_calls, self.deterministic
        threads = StepThreads(run, calls, self.name, deterministic)
        return _prepared(passes, slots, block_length, run, threads)

    def _slots(self, processors: int) -> int:
        if self.cycle_length not in (None, AUTOTUNE):
            return self.cycle_length
        if self.num_parallel_calls is None:
            return processors
        if self.num_parallel_calls == AUTOTUNE:
            return -(-processors // _AHEAD)
        return min(self.num_parallel_calls, processors)


class _InnerPass:
    """The pass over the dataset of one element."""

    def __init__(self, element: Any, map_func: Callable[[Any], Node], run: Run) -> None:
        self._run = run.part()
        self.elements = _begun(element, map_func, self._run)
        self._taking = threading.Lock()
        self._closed = False

    def take(self, length: int) -> _Block:
        taken: list[Any] = []
        failure: BaseException | None = None
        with self._taking:
            if not self._closed:
                try:
                    with self._run.allocator():  # raises ResourceExhaustedError
                        # extend() keeps the elements before an exception
                        taken.extend(islice(self.elements, length))
                except BaseException as error:
                    failure = error
        if self._closed:
            self.close()
        try:
            return taken, len(taken) < length, failure
        finally:
            del failure  # its traceback refers to this frame: break the cycle

    def close(self) -> None:
        """End the pass and its parts; if a thread is in `take`, it does so after."""
        self._closed = True
        self._run.close()
        if self._taking.acquire(blocking=False):
            try:
                with closing(self.elements):
                    self.elements = iter(())
            finally:
                self._taking.release()


def _begun(element: Any, map_func: Callable[[Any], Node], run: Run) -> Iterator[Any]:
    """Begin an inner pass when its first element is asked for."""
    try:
        with scope_out():
            node = map_func(element)
        elements = node.elements(run)
    except StopIteration as error:
        raise RuntimeError("a map_func raised StopIteration") from error
    yield from elements


def _in_cycle(
    passes: Iterator[_InnerPass], unused: int, block_length: int, run: Run
) -> Iterator[Any]:
    """Yield the elements of inner passes, in the consumer's thread."""
    slots: deque[_InnerPass | None] = deque()  # in order of turns; None: free
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
                element = next(inner.elements, _END)
                if element is _END:
                    slots[-1] = None
                    inner.close()
                    break
                yield element
                del element
    finally:
        with closing(passes, *filter(None, slots)):
            pass


def _prepared(
    passes: Iterator[_InnerPass],
    unused: int,
    block_length: int,
    run: Run,
    threads: StepThreads,
) -> Iterator[Any]:
    """Yield the elements of blocks that threads prepare.

    They prepare only the next block of each slot, so that one thread at a time uses an
    inner pass, and elements come in the same order as without threads.
    """
    futures: dict[Future[_Block], _InnerPass | None] = {}  # in order of turns
    prepare = partial(_prepare, passes, futures, threads.pool, block_length)
    try:
        while not run.closed:
            while unused:
                unused = unused - 1 if prepare(None) else 0
            if not futures:
                return
            began = perf_counter()
            future = threads.next_of(futures)
            try:
                taken, ended, failure = future.result()
            except StopIteration:  # the pass was closed
                return
            waited = perf_counter() - began
            inner = futures.pop(future)
            if ended and inner is not None:
                inner.close()
            if failure is None:
                prepare(None if ended else inner)
            threads.delivered(len(taken), waited)
            taken.reverse()
            while taken:
                yield taken.pop()
            if failure is not None:
                raise failure
    finally:
        failure = None  # it refers to this frame by now
        threads.stop(wait=False)
        with closing(passes, *filter(None, futures.values())):
            pass


def _prepare(
    passes: Iterator[_InnerPass],
    futures: dict[Future[_Block], _InnerPass | None],
    pool: ThreadPool,
    block_length: int,
    inner: _InnerPass | None,
) -> bool:
    """Submit the next block of a slot; return False if there is no inner pass left."""
    try:
        inner = inner or next(passes, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # raised when the block's turn comes
        futures[pool.submit(partial(_fail, error))] = None
        return False
    if inner is not None:
        futures[pool.submit(partial(inner.take, block_length))] = inner
    return inner is not None


def _fail(error: BaseException) -> _Block:
    raise error
