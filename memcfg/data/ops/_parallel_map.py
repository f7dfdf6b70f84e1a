"""Results of a function that several threads call, element by element.

Owns how many elements a thread takes at a time: so many that handing them over costs
little against the function, and no more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._user_functions import apply
from memcfg.data.engine._parallel_step import Crew
from memcfg.data.engine._shared_source import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._thread_pool import Ticket

__all__ = ["ParallelMapped", "pace"]

_END = object()
WORTH = 1e-3  # seconds of work that are worth handing over
MOST = 64  # elements at a time


def pace(seconds: float, most: int) -> int:
    """Tell how many elements a thread is to take at a time.

    Parameters
    ----------
    seconds : float
        What one takes.
    most : int
        How many at most.

    Returns
    -------
    int
        At least 1.
    """
    return max(1, min(most, int(WORTH / max(seconds, 1e-9))))


@dataclass(slots=True)
class _Piece:
    """What a thread has made of some elements."""

    results: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    seconds: float = 0.0  # an element


class ParallelMapped:
    """An iterator over results.

    Parameters
    ----------
    run : Run
        The pass.
    elements : iterator
        Over what the function is applied to; closed at the end.
    function : callable
        The function.
    calls : int
        Threads; -1 is AUTOTUNE.
    name : str
        Of the step.
    ordered : bool
        Whether results keep the order.
    """

    def __init__(
        self,
        run: Run,
        elements: Iterator[Any],
        function: Callable[..., Any],
        calls: int,
        name: str,
        *,
        ordered: bool,
    ) -> None:
        self._tap: Tap[Iterator[Any]] = Tap(elements)
        self._crew = Crew(run, calls, name, self._tap)
        self._run = run
        self._function = function
        self._ordered = ordered
        self._size = 1  # elements at a time
        self._tickets: deque[Ticket[_Piece]] = deque()
        self._ready: deque[Any] = deque()
        self._failure: BaseException | None = None
        self._counted, self._seconds = 0, 0.0  # of the consumer's own thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._ready:
            if not (self._crew.works or self._tickets):
                return self._next_alone()
            self._advance()
        return self._ready.popleft()

    def _next_alone(self) -> Any:
        """Map an element in the consumer's own thread."""
        began = perf_counter()
        element = self._tap.read_alone(_next)
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
            self._crew.delivered(self._counted, self._seconds)
            self._size = pace(self._seconds / self._counted, min(MOST, 2 * self._size))
            self._counted, self._seconds = 0, 0.0

    def _advance(self) -> None:
        """Get the next results, or raise."""
        self._submit()
        if not self._tickets:
            self._finish()
        began = perf_counter()
        ticket = self._tickets[0]
        if not self._ordered:
            ticket = self._crew.first(list(self._tickets))
        piece = ticket.result()
        self._tickets.remove(ticket)
        self._ready.extend(piece.results)
        self._crew.delivered(len(piece.results), perf_counter() - began)
        if piece.results:
            self._size = pace(piece.seconds, min(MOST, 2 * self._size))
        self._fail(piece.failure)

    def _submit(self) -> None:
        """Have as many pieces in work as there are threads, and one more."""
        ahead = self._crew.parallelism + 1 if self._crew.works else 0
        self._crew.ahead = ahead * self._size
        while len(self._tickets) < ahead and not self._tap.ended:
            task = partial(_mapped, self._run, self._tap, self._function, self._size)
            self._tickets.append(self._crew.submit(task))

    def _fail(self, failure: BaseException | None) -> None:
        """Remember what a function raised: results before it come first."""
        if failure is not None and self._failure is None:
            self._failure = failure
            self._tap.ended = True
            if self._ordered:
                self._tickets.clear()

    def _finish(self) -> NoReturn:
        failure, self._failure = self._failure, None
        if self._counted:
            self._crew.delivered(self._counted, self._seconds)
            self._counted = 0
        self.close()
        if failure is None:
            raise StopIteration
        try:
            raise failure
        finally:
            del failure  # it refers to this frame by now

    def close(self) -> None:
        """End the threads, without waiting."""
        self._crew.stop(wait=False)
        self._tickets.clear()
        self._ready.clear()


def _next(elements: Iterator[Any]) -> tuple[Any] | None:
    for element in elements:
        return (element,)
    return None


def _mapped(
    run: Run, tap: Tap[Any], function: Callable[..., Any], size: int, number: int
) -> _Piece:
    """Map some elements, in a thread; `number` is that of the turn to read them in."""
    piece = _Piece()
    elements = tap.read(number, partial(_drawn, run, tap, size, piece)) or []
    began = perf_counter()
    try:
        with run.allocator():  # which tells why there is no memory
            for element in elements:
                piece.results.append(apply(function, element))
    except BaseException as error:
        piece.failure = error
        tap.ended = True
    piece.seconds = (perf_counter() - began) / max(1, len(elements))
    return piece


def _drawn(
    run: Run, tap: Tap[Any], size: int, piece: _Piece, elements: Iterator[Any]
) -> list[Any]:
    """Take elements, and wait for no more if they come slowly."""
    found: list[Any] = []
    until = perf_counter() + WORTH
    try:
        with run.allocator():
            while len(found) < size and not tap.ended and perf_counter() < until:
                element = next(elements, _END)
                if element is _END:
                    tap.ended = True
                else:
                    found.append(element)
    except BaseException as error:
        piece.failure = error
        tap.ended = True
    return found
