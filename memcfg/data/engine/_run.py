"""What the steps of one pass over a pipeline share."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

from memcfg._core.numpy_memory import scope_out
from memcfg.data.engine._budgets import Budget, WaitTimer
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
        """End the thread, and release everything."""


class Run:
    """One pass, and all that it started: threads, buffers, inner passes."""

    def __init__(
        self,
        resource: Resource,
        options: Options,
        *,
        parent: Run | None = None,
        probing: bool = False,
        tuned_state: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.resource = resource
        self.options = options
        self.stages: list[Any] = []  # that adapt, or have threads: each has a report
        self.budget: Budget = (
            Budget(resource, options) if parent is None else parent.budget
        )
        self.wait_timer: WaitTimer = (
            WaitTimer() if parent is None else parent.wait_timer
        )
        # Whether the pass is only to tell what elements are, and changes nothing else.
        self.probing: bool = probing if parent is None else parent.probing
        self._past: dict[str, StageReport] = {}  # of parts that are over
        if parent is not None:
            tuned_state = parent._tuned_state
        self._tuned_state: dict[str, dict[str, Any]] = (
            {} if tuned_state is None else tuned_state
        )
        self._parent = parent
        # Lists whose operations nothing divides: a lock could be held over a fork.
        self._parts: list[Stoppable] = []
        self.closed = False  # threads end when they see it

    def part(self) -> Run:
        """Begin a pass within this one that ends earlier: that of an inner dataset."""
        inner = Run(self.resource, self.options, parent=self)
        self.on_close(inner)
        return inner

    def tuned_state(self, name: str) -> dict[str, Any]:
        """Return what earlier passes over the same pipeline have learned of a step."""
        return self._tuned_state.setdefault(name, {})

    def reports(self) -> list[StageReport]:
        """Ask each stage, those of parts too; stages of one name are told as one."""
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

    def allocator(self) -> NumpyAllocator:
        """Make an allocator that puts arrays into `resource`, for one thread."""
        return numpy_allocator(self.resource, tag=_TAG)

    def outside(self) -> AbstractContextManager[Any]:
        """Have arrays made outside of the workspace that is current."""
        return scope_out()

    def on_close(self, part: Stoppable) -> None:
        """Have something stopped when the pass is over; at once if it is."""
        self._parts.append(part)
        if self.closed:
            part.stop(wait=False)

    def stop(self, *, wait: bool) -> None:
        """Do as `close` does."""
        self.close(wait=wait)

    def close(self, *, wait: bool = False) -> None:
        """End the pass: stop its threads, which release what they hold."""
        self.closed = True
        parts = tuple(self._parts)  # kept: a later call may wait for them
        for waits in (False, True) if wait else (False,):
            with ExitStack() as stack:  # all are stopped, whatever one of them raises
                for part in parts:
                    stack.callback(part.stop, wait=waits)
        if wait:
            self._parts = []
        if self._parent is not None:
            self._parent._keep_reports(self)

    def _keep_reports(self, part: Run) -> None:
        """Remember what a part of this pass had to tell, and drop the part."""
        with suppress(ValueError):  # it is this pass that is closing
            self._parts.remove(part)
        for each in part.reports():
            known = self._past.get(each.name)
            self._past[each.name] = each if known is None else known.before(each)
        part.stages, part._past = [], {}
