"""`Dataset.map`: a user's function applied to each element."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from memcfg._cached import cached_property
from memcfg.data.elements._convert import apply, composed
from memcfg.data.engine._condition import raise_failure
from memcfg.data.engine._iterator import probe
from memcfg.data.engine._parallel_step import (
    WORTH,
    SharedSource,
    StepThreads,
    checked_calls,
    chunk_length,
    drop,
)
from memcfg.data.ops._node import Node, UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future

_END = object()
_MAX = 64  # max. elements of a task


@dataclass(frozen=True, eq=False)
class Map(UnaryNode):
    """The results of a function on each element."""

    function: Callable[..., Any]
    name: str
    calls: int | None = None  # threads; None: the consumer's
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"map needs a function, not {self.function!r}")
        object.__setattr__(self, "calls", checked_calls(self.calls, self.deterministic))

    is_probed = True
    has_datasets = False

    @cached_property
    def element_spec(self) -> Any:
        return probe(self)

    @property
    def repeats(self) -> bool:
        return self.deterministic is not False and self.source.repeats

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass; without threads it keeps no elements and no results."""
        elements = self.source.elements(run)
        if self.calls is None:
            return map(partial(apply, self.function), elements)
        return _ParallelMap(run, elements, self)


def unmapped(node: Node) -> tuple[Node, Callable[..., Any] | None]:
    """Split off the maps at the end of a pipeline, for fusion into the next step.

    Returns the step before the maps with the same threads and order, and the
    composition of their functions, whose result is not converted; None without maps.
    """
    functions, source = [], node
    while isinstance(source, Map) and _work_alike(source, node):
        functions.append(source.function)
        source = source.source
    return source, composed(functions[::-1]) if functions else None


def _work_alike(one: Map, other: Node) -> bool:
    if not isinstance(other, Map) or one.calls != other.calls:
        return False
    return one.calls is None or one.deterministic == other.deterministic


@dataclass(slots=True)
class _Chunk:
    """The results of a task."""

    results: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    seconds: float = 0.0  # per element


class _ParallelMap:
    """An iterator over the results of a function that several threads call."""

    def __init__(self, run: Run, elements: Iterator[Any], step: Map) -> None:
        assert step.calls is not None
        source: SharedSource[Iterator[Any]] = SharedSource(elements)
        deterministic = step.deterministic
        self._threads = StepThreads(run, step.calls, step.name, deterministic, source)
        self._source = source
        self._run = run
        self._function = step.function
        self._size = 1  # elements of a task
        self._futures: deque[Future[_Chunk]] = deque()
        self._ready: deque[Any] = deque()
        self.failure: BaseException | None = None
        self._counted, self._seconds = 0, 0.0  # elements, in the consumer's thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._ready:
            if not (self._threads.works or self._futures):
                return self._next_alone()
            self._advance()
        return self._ready.popleft()

    def _next_alone(self) -> Any:
        began = perf_counter()
        element = self._source.read_alone(lambda elements: next(elements, None))
        if element is None:
            self._finish()
        result = apply(self._function, element)
        del element
        self._counted += 1
        self._seconds += perf_counter() - began
        if self._counted >= self._size:
            self._note_alone()
        return result

    def _note_alone(self) -> None:
        if self._counted:
            self._threads.delivered(self._counted, self._seconds)
            self._choose_size(self._seconds / self._counted)
            self._counted, self._seconds = 0, 0.0

    def _choose_size(self, seconds: float) -> None:
        self._size = chunk_length(seconds, min(_MAX, 2 * self._size))

    def _advance(self) -> None:
        self._submit()
        if not self._futures:
            self._finish()
        began = perf_counter()
        future = self._threads.next_of(self._futures)
        chunk = future.result()
        self._futures.remove(future)
        self._ready.extend(chunk.results)
        self._threads.delivered(len(chunk.results), perf_counter() - began)
        if chunk.results:
            self._choose_size(chunk.seconds)
        failure, chunk.failure = chunk.failure, None  # its traceback has the chunk
        if failure is not None and self.failure is None:
            self.failure = failure  # raised after the results before it
            if self._threads.ordered:
                self._drop()
        del failure

    def _submit(self) -> None:
        """Submit tasks until there is one more than threads."""
        ahead = self._threads.pool.size + 1 if self._threads.works else 0
        self._threads.ahead = ahead * self._size
        while len(self._futures) < ahead and not self._source.ended:
            arguments = self._run, self._source, self._function, self._size
            task = partial(_mapped, *arguments, self._source.reserve())
            self._futures.append(self._threads.pool.submit(task))

    def _finish(self) -> NoReturn:
        self._note_alone()
        self.close()
        raise_failure(self)
        raise StopIteration

    def close(self) -> None:
        """End the threads, without waiting."""
        self._threads.stop(wait=False)
        self._drop()
        self._ready.clear()

    def _drop(self) -> None:
        drop(self._futures)
        self._futures.clear()


def _mapped(
    run: Run,
    source: SharedSource[Iterator[Any]],
    function: Callable[..., Any],
    size: int,
    number: int,
) -> _Chunk:
    """Map some elements, in a thread; `number` sets the order of reading."""
    chunk, elements_read = _Chunk(), list[Any]()

    def read(elements: Iterator[Any]) -> None:
        """Read up to `size` elements, fewer if the source is slow."""
        until = perf_counter() + WORTH
        with source.failing(chunk), run.allocator():  # raises ResourceExhaustedError
            while (
                len(elements_read) < size
                and not source.ended
                and perf_counter() < until
            ):
                element = next(elements, _END)
                if element is _END:
                    source.ended = True
                else:
                    elements_read.append(element)

    source.read(number, read)
    began = perf_counter()
    with source.failing(chunk), run.allocator():
        for element in elements_read:
            chunk.results.append(apply(function, element))
    chunk.seconds = (perf_counter() - began) / max(1, len(elements_read))
    return chunk
