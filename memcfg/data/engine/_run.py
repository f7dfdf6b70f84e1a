"""What the steps of one pass over a pipeline share.

Owns where arrays come from, the end of all threads, and the list of what adapts.
Refuses to know steps.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

from memcfg._core.numpy_memory import scope_out
from memcfg.data.engine._budgets import Budget, Stall
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from memcfg.data._options import Options
    from memcfg.data._pipeline_report import StageReport
    from memcfg.memory import NumpyAllocator, Resource

__all__ = ["Run", "Stoppable"]

_TAG = "data"


class Stoppable(Protocol):
    """Something with a thread."""

    def stop(self, *, wait: bool) -> object:
        """End the thread, and let go of everything.

        Parameters
        ----------
        wait : bool
            Whether to wait for the thread to end. If not, the call never waits: the
            garbage collector may be what calls.
        """


class Run:
    """One pass, and all that it started.

    Parameters
    ----------
    resource : Resource
        Where arrays come from that lie in no workspace, and the pages of workspaces.
    options : Options
        The dataset's.
    parent : Run, optional
        The pass that this one is a part of.
    probing : bool, default False
        Whether the pass is only to tell what elements are: it draws no seeds, keeps
        nothing in caches. A part does as its parent.
    hindsight : dict, optional
        What earlier passes over the same pipeline have learned, by step. A part shares
        its parent's.

    Attributes
    ----------
    resource : Resource
        As given.
    options : Options
        As given.
    stages : list
        What `reports` asks, each with a method ``report()``.
    budget : Budget
        What steps may use together; a part's is its parent's.
    stall : Stall
        How long the consumer has waited; likewise.
    probing : bool
        As given.
    """

    def __init__(
        self,
        resource: Resource,
        options: Options,
        *,
        parent: Run | None = None,
        probing: bool = False,
        hindsight: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.resource = resource
        self.options = options
        self.stages: list[Any] = []
        self.budget: Budget = (
            Budget(resource, options) if parent is None else parent.budget
        )
        self.stall: Stall = Stall() if parent is None else parent.stall
        self.probing: bool = probing if parent is None else parent.probing
        self._past: dict[str, StageReport] = {}  # of parts that are over
        if parent is not None:
            hindsight = parent._hindsight
        self._hindsight: dict[str, dict[str, Any]] = (
            {} if hindsight is None else hindsight
        )
        self._parent = parent
        # Lists whose operations nothing divides: a lock could be held over a fork.
        self._parts: list[Stoppable] = []
        self._closed = False

    def part(self) -> Run:
        """Begin a pass within this one, which ends earlier: that of an inner dataset.

        Returns
        -------
        Run
            Closing it stops what it started; this one closes it at the latest.
        """
        inner = Run(self.resource, self.options, parent=self)
        self.on_close(inner)
        return inner

    def hindsight(self, name: str) -> dict[str, Any]:
        """Tell what an earlier pass over the same pipeline has learned of a step.

        Parameters
        ----------
        name : str
            The step's.

        Returns
        -------
        dict
            What this pass learns is noted in it.
        """
        return self._hindsight.setdefault(name, {})

    def reports(self) -> list[StageReport]:
        """Ask each stage, those of parts too; stages of one name are told as one.

        Returns
        -------
        list of StageReport
            As it is now.
        """
        parts = [part for part in self._parts if isinstance(part, Run)]
        told = [stage.report() for stage in self.stages]
        found: dict[str, StageReport] = {}
        for each in (*told, *(one for part in parts for one in part.reports())):
            known = found.get(each.name)
            found[each.name] = each if known is None else known.beside(each)
        past = dict(self._past)
        for name, each in found.items():
            past[name] = past[name].before(each) if name in past else each
        return list(past.values())

    @property
    def closed(self) -> bool:
        """Whether the pass is over; threads end when they see it."""
        return self._closed

    def allocator(self) -> NumpyAllocator:
        """Make an allocator that puts arrays into `resource`, for one thread.

        Returns
        -------
        NumpyAllocator
            To be entered.
        """
        return numpy_allocator(self.resource, tag=_TAG)

    def outside(self) -> AbstractContextManager[Any]:
        """Have arrays made outside of the workspace that is current.

        Returns
        -------
        context manager
            Inside, arrays are blocks of their own of `resource`.
        """
        return scope_out()

    def on_close(self, part: Stoppable) -> None:
        """Have something stopped when the pass is over; at once if it is.

        Parameters
        ----------
        part : Stoppable
            Stopped once, before those that were named earlier: it reads from them.
        """
        self._parts.append(part)
        if self._closed:
            part.stop(wait=False)

    def stop(self, *, wait: bool) -> None:
        """Do as `close` does.

        Parameters
        ----------
        wait : bool
            As for `close`.
        """
        self.close(wait=wait)

    def close(self, *, wait: bool = False) -> None:
        """End the pass: stop its threads, and give back what they hold.

        Parameters
        ----------
        wait : bool, default False
            Whether to wait for threads to end. One that is inside a user's function
            ends when that returns.
        """
        self._closed = True
        parts = tuple(self._parts)  # kept: a later call may wait for them
        for waits in (False, True) if wait else (False,):
            with ExitStack() as stack:  # all are stopped, whatever one of them raises
                for part in parts:
                    stack.callback(part.stop, wait=waits)
        if wait:
            self._parts = []
        if self._parent is not None:
            self._parent._outlive(self)

    def _outlive(self, part: Run) -> None:
        """Remember what a part of this pass had to tell, and forget the part."""
        with suppress(ValueError):  # it is this pass that is closing
            self._parts.remove(part)
        for each in part.reports():
            known = self._past.get(each.name)
            self._past[each.name] = each if known is None else known.before(each)
        part.stages, part._past = [], {}
