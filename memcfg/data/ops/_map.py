"""A user's function applied to each element: `Dataset.map`."""

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
    SharedSource,
    StepThreads,
    checked_calls,
    is_ordered,
)
from memcfg.data.ops._node import Node, UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Future

_END = object()
_WORTH = 1e-3  # seconds of work that are worth handing over
_MAX = 64  # elements at a time


@dataclass(frozen=True, eq=False)
class Map(UnaryNode):
    """Results of a function, which takes the parts of a tuple as arguments."""

    function: Callable[..., Any]
    name: str
    calls: int | None = None  # threads; None: the consumer's
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"map needs a function, not {self.function!r}")
        object.__setattr__(self, "calls", checked_calls(self.calls, self.deterministic))

    is_probed = True

    @cached_property
    def element_spec(self) -> Any:
        return probe(self)

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass; without threads it keeps neither an element nor a result."""
        elements = self.source.elements(run)
        if self.calls is None:
            return map(partial(apply, self.function), elements)
        ordered = is_ordered(run, self.deterministic)
        return _ParallelMap(run, elements, self, ordered=ordered)


def unmapped(node: Node) -> tuple[Node, Callable[..., Any] | None]:
    """Take the functions off a step, to be applied by the step behind it.

    Returns the step before all maps that work alike, and what they do together; what
    that returns has not been converted.
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


def chunk_length(seconds: float, limit: int) -> int:
    """Tell how many elements, each of so many seconds, a thread is to take at a time.

    So many that handing them over costs little against the function, and no more.
    """
    return max(1, min(limit, int(_WORTH / max(seconds, 1e-9))))


@dataclass(slots=True)
class _Chunk:
    """What a thread has made of some elements."""

    results: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    seconds: float = 0.0  # an element


class _ParallelMap:
    """An iterator over results of a function that several threads call."""

    def __init__(
        self, run: Run, elements: Iterator[Any], step: Map, *, ordered: bool
    ) -> None:
        assert step.calls is not None
        self._source: SharedSource[Iterator[Any]] = SharedSource(elements)
        self._threads = StepThreads(run, step.calls, step.name, self._source)
        self._run = run
        self._function = step.function
        self._ordered = ordered
        self._size = 1  # elements at a time
        self._futures: deque[Future[_Chunk]] = deque()
        self._ready: deque[Any] = deque()
        self.failure: BaseException | None = None
        self._counted, self._seconds = 0, 0.0  # of the consumer's own thread

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
        element = self._source.read_alone(_next)
        if element is None:
            self._finish()
        result = apply(self._function, element[0])
        del element
        self._count_alone(perf_counter() - began)
        return result

    def _count_alone(self, seconds: float) -> None:
        self._counted += 1
        self._seconds += seconds
        if self._counted >= self._size:
            self._threads.delivered(self._counted, self._seconds)
            self._size = self._next_size(self._seconds / self._counted)
            self._counted, self._seconds = 0, 0.0

    def _next_size(self, seconds: float) -> int:
        return chunk_length(seconds, min(_MAX, 2 * self._size))

    def _advance(self) -> None:
        self._submit()
        if not self._futures:
            self._finish()
        began = perf_counter()
        future = self._futures[0]
        if not self._ordered:
            future = self._threads.pool.first_done(self._futures)
        chunk = future.result()
        self._futures.remove(future)
        self._ready.extend(chunk.results)
        self._threads.delivered(len(chunk.results), perf_counter() - began)
        if chunk.results:
            self._size = self._next_size(chunk.seconds)
        self._fail(chunk.failure)

    def _submit(self) -> None:
        """Have as many chunks in work as there are threads, and one more."""
        ahead = self._threads.pool.size + 1 if self._threads.works else 0
        self._threads.ahead = ahead * self._size
        while len(self._futures) < ahead and not self._source.ended:
            arguments = self._run, self._source, self._function, self._size
            task = partial(_mapped, *arguments, self._source.reserve())
            self._futures.append(self._threads.pool.submit(task))

    def _fail(self, failure: BaseException | None) -> None:
        """Remember what a function raised: results before it come first."""
        if failure is not None and self.failure is None:
            self.failure = failure
            self._source.ended = True
            if self._ordered:
                self._futures.clear()

    def _finish(self) -> NoReturn:
        if self._counted:
            self._threads.delivered(self._counted, self._seconds)
            self._counted = 0
        self.close()
        raise_failure(self)
        raise StopIteration

    def close(self) -> None:
        """End the threads, without waiting."""
        self._threads.stop(wait=False)
        self._futures.clear()
        self._ready.clear()


def _next(elements: Iterator[Any]) -> tuple[Any] | None:
    for element in elements:
        return (element,)
    return None


def _mapped(
    run: Run,
    source: SharedSource[Any],
    function: Callable[..., Any],
    size: int,
    number: int,
) -> _Chunk:
    """Map some elements, in a thread; `number` says when they are to be read."""
    chunk = _Chunk()
    elements = source.read(number, partial(_read, run, source, size, chunk)) or []
    began = perf_counter()
    try:
        with run.allocator():  # which tells why there is no memory
            for element in elements:
                chunk.results.append(apply(function, element))
    except BaseException as error:
        chunk.failure = error
        source.ended = True
    chunk.seconds = (perf_counter() - began) / max(1, len(elements))
    return chunk


def _read(
    run: Run,
    source: SharedSource[Any],
    size: int,
    chunk: _Chunk,
    elements: Iterator[Any],
) -> list[Any]:
    """Read elements, and wait for no more if they come slowly."""
    found: list[Any] = []
    until = perf_counter() + _WORTH
    try:
        with run.allocator():
            while len(found) < size and not source.ended and perf_counter() < until:
                element = next(elements, _END)
                if element is _END:
                    source.ended = True
                else:
                    found.append(element)
    except BaseException as error:
        chunk.failure = error
        source.ended = True
    return found
