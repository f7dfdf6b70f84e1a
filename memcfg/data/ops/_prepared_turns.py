"""Turns of inner passes that threads prepare: `Dataset.interleave` with threads.

Owns what is prepared: the next turn of each place, and no more. So one thread at a time
is at an inner pass, and elements come in the order that they have without threads.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from memcfg.data._closing import closing
from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import TunedParallelism
from memcfg.data.engine._thread_pool import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._thread_pool import Ticket
    from memcfg.data.ops._inner_passes import Inner, Inners, Turn

__all__ = ["PreparedTurns", "in_parallel"]

_AUTOTUNE = -1


def in_parallel(turns: PreparedTurns) -> Iterator[Any]:
    """Yield the elements of turns that threads prepare.

    Parameters
    ----------
    turns : PreparedTurns
        The turns. It is closed at the end.

    Yields
    ------
    nest of numpy.ndarray
        An element.
    """
    with closing(turns):
        for taken in turns:
            taken.reverse()
            while taken:
                yield taken.pop()


class PreparedTurns:
    """Turns that threads prepare: the next one of each place.

    Parameters
    ----------
    inners : Inners
        The passes.
    places : int
        How many take turns.
    block_length : int
        How many elements are taken in a turn.
    calls : int
        How many threads; -1 is AUTOTUNE.
    ordered : bool
        Whether turns come in the order of the places; else those that are ready do.
    name : str
        For threads, messages and reports.
    """

    def __init__(
        self,
        inners: Inners,
        places: int,
        block_length: int,
        *,
        calls: int,
        ordered: bool,
        name: str,
    ) -> None:
        run = inners.run
        self._inners = inners
        self._unused = places
        self._block_length = block_length
        self._ordered = ordered
        self._name = name
        self._items = 0
        self._waited = 0.0
        self._tuned: TunedParallelism | None = None
        if calls == _AUTOTUNE:
            self._tuned = TunedParallelism(run, run.hindsight(name))
            threads = self._tuned.parallelism
        else:
            threads = run.budget.employ(self, calls)
        self._workers = Workers(threads, name, run.allocator)
        run.on_close(self._workers)
        run.stages.append(self)
        self._turns: dict[Ticket[Turn], Inner | None] = {}  # the next one first
        self._failure: BaseException | None = None  # behind the last turn

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        self._raise()
        while self._unused:
            self._unused = self._unused - 1 if self._prepare(None) else 0
        if not self._turns or self._inners.run.closed:
            raise StopIteration
        ticket, (taken, ended, self._failure) = self._taken()
        inner = self._turns.pop(ticket)
        if ended and inner is not None:
            inner.close()
        if self._failure is None:
            self._prepare(None if ended else inner)
        self._note(len(taken))
        return taken

    def _raise(self) -> None:
        """Raise what came behind the last turn."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # it refers to this frame by now

    def _note(self, items: int) -> None:
        self._items += items
        if self._tuned is not None:
            self._tuned.consumed(items)
            if self._workers.count != self._tuned.parallelism:
                self._workers.count = self._tuned.parallelism

    def _taken(self) -> tuple[Ticket[Turn], Turn]:
        began = perf_counter()
        ticket = next(iter(self._turns))
        if not self._ordered:
            ticket = self._workers.first(self._turns)
        turn = ticket.result()
        self._waited += perf_counter() - began
        return ticket, turn

    def _prepare(self, inner: Inner | None) -> bool:
        """Have the next turn of a place prepared; False: there is nothing to take."""
        try:
            inner = inner or next(self._inners, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it comes when the turn does
            self._turns[self._workers.submit(partial(_fail, error))] = None
            return False
        if inner is None:
            return False
        turn = self._workers.submit(partial(inner.take, self._block_length))
        self._turns[turn] = inner
        return True

    def report(self) -> StageReport:
        """Tell what was chosen.

        Returns
        -------
        StageReport
            As it is now.
        """
        return StageReport(
            name=self._name,
            autotuned=self._tuned is not None,
            parallelism=self._workers.count,
            items=self._items,
            waited_seconds=self._waited,
        )

    def close(self) -> None:
        """Stop the threads, and end all passes."""
        self._workers.stop(wait=False)
        turns, self._turns = self._turns, {}
        with closing(self._inners, *filter(None, turns.values())):
            pass


def _fail(error: BaseException) -> Turn:
    raise error
