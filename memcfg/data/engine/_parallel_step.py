"""Threads that work ahead of their consumer, in order.

Owns what parallel steps share: how many threads there are, and what is told of them.
Refuses to know what they do.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from memcfg.data._checks import count, flag
from memcfg.data._pipeline_report import StageReport
from memcfg.data.engine._autotune import TunedParallelism
from memcfg.data.engine._thread_pool import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.data.engine._run import Run
    from memcfg.data.engine._shared_source import Tap
    from memcfg.data.engine._thread_pool import Ticket

__all__ = ["AUTOTUNE", "Crew", "checked_calls", "is_ordered"]

AUTOTUNE = -1


def checked_calls(calls: int | None, deterministic: bool | None) -> int | None:
    """Read the arguments of a step that may be parallel.

    Parameters
    ----------
    calls : int or None
        `num_parallel_calls`.
    deterministic : bool or None
        Whether the order is kept.

    Returns
    -------
    int or None
        Threads; -1 is AUTOTUNE, None is nothing parallel.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the number is neither positive nor -1.

    Warns
    -----
    UserWarning
        If `deterministic` is given and nothing is parallel.
    """
    if deterministic is not None:
        flag(deterministic, "deterministic")
    if calls is not None:
        if calls == AUTOTUNE:
            return AUTOTUNE
        return count(calls, "num_parallel_calls")
    if deterministic is not None:
        warnings.warn(
            "deterministic has no effect without num_parallel_calls: give both or none",
            UserWarning,
            stacklevel=4,
        )
    return None


def is_ordered(run: Run, deterministic: bool | None) -> bool:
    """Tell whether a parallel step keeps the order.

    Parameters
    ----------
    run : Run
        The pass, whose options count where the step says nothing.
    deterministic : bool or None
        What the step says.

    Returns
    -------
    bool
        True where nobody says anything.
    """
    if deterministic is None:
        return run.options.deterministic is not False
    return deterministic


class Crew:
    """The threads of a step: as many as the user says, or as AUTOTUNE has it.

    Parameters
    ----------
    run : Run
        The pass; the threads end with it.
    calls : int
        How many; -1 is AUTOTUNE.
    name : str
        Of the step.
    tap : Tap
        What they read from; closed when they are stopped.

    Attributes
    ----------
    items : int
        How many elements have been handed on.
    waited : float
        Seconds that they were waited for.
    ahead : int
        How many elements may be worked at ahead of the consumer.
    tuned : TunedParallelism or None
        What chooses the number of threads.
    held : callable
        Tells what the step's buffers hold, in bytes.
    """

    def __init__(self, run: Run, calls: int, name: str, tap: Tap[Any]) -> None:
        self.items = 0
        self.waited = 0.0
        self.ahead = 0
        self.held: Callable[[], int] = int
        self._name = name
        self._tap = tap
        self.tuned: TunedParallelism | None = None
        if calls == AUTOTUNE:
            self.tuned = TunedParallelism(run, run.hindsight(name))
            threads = self.tuned.parallelism
        else:
            threads = run.budget.employ(self, calls)
        self._workers = Workers(threads, name, run.allocator)
        self._number = 0
        run.on_close(self)
        run.stages.append(self)

    @property
    def parallelism(self) -> int:
        """How many threads work."""
        return self._workers.count

    @property
    def works(self) -> bool:
        """Whether there are threads; else the consumer does the work."""
        return self.tuned is None or self._workers.count > 1

    def submit(self, task: Callable[[int], object]) -> Ticket[Any]:
        """Have a task done.

        Parameters
        ----------
        task : callable
            Takes the number of its turn, which it must wait for and end.

        Returns
        -------
        Ticket
            For what it returns.
        """
        number, self._number = self._number, self._number + 1
        return self._workers.submit(lambda: task(number))

    def delivered(self, items: int, waited: float) -> None:
        """Note what has been handed on, and change the number of threads.

        Parameters
        ----------
        items : int
            How many elements.
        waited : float
            Seconds that they were waited for.
        """
        self.items += items
        self.waited += waited
        if self.tuned is not None:
            self.tuned.consumed(items)
            if self._workers.count != self.tuned.parallelism:
                self._workers.count = self.tuned.parallelism

    def first(self, tickets: list[Ticket[Any]]) -> Ticket[Any]:
        """Wait until one of some tasks is done.

        Parameters
        ----------
        tickets : list of Ticket
            Theirs.

        Returns
        -------
        Ticket
            That of the first in line that is done.
        """
        return self._workers.first(tickets)

    def stop(self, *, wait: bool) -> bool:
        """End the threads.

        Parameters
        ----------
        wait : bool
            Whether to wait for them.

        Returns
        -------
        bool
            Whether they have ended.
        """
        self._tap.close()
        return self._workers.stop(wait=wait)

    def report(self) -> StageReport:
        """Tell what was chosen.

        Returns
        -------
        StageReport
            As it is now.
        """
        return StageReport(
            name=self._name,
            autotuned=self.tuned is not None,
            parallelism=self.parallelism,
            buffer_size=self.ahead,
            items=self.items,
            waited_seconds=self.waited,
            nbytes=self.held(),
        )
