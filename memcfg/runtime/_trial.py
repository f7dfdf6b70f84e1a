"""Comparison of plans of one program in real training steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.runtime._program_specs import ProgramSpec


class Trial:
    """Trial that runs each of several specs of a program for some steps.

    Parameters
    ----------
    running : ProgramSpec
        The spec that has run.
    first : ProgramSpec
        The same spec with the costs measured in its steps.
    seconds : float
        Minimum seconds of such a step.
    others : iterable of ProgramSpec
        The specs to run, in this order.
    """

    def __init__(
        self,
        running: ProgramSpec,
        first: ProgramSpec,
        seconds: float,
        others: Iterable[ProgramSpec],
    ) -> None:
        self.running = running
        self._first = first
        self._left = [*others]
        self._took = [(seconds, first)]
        self._is_noted = True
        self._refused = ""

    @property
    def next(self) -> ProgramSpec | None:
        """The spec to run next, or None if all have run."""
        return self._left[0] if self._left else None

    def note(self, seconds: float) -> None:
        """Record the minimum step time of the running spec; later calls do nothing."""
        if not self._is_noted:
            self._took.append((seconds, self.running))
            self._is_noted = True

    def run_next(self) -> None:
        """Record that the next spec is now running."""
        self.running, self._is_noted = self._left.pop(0), False

    def refuse_next(self) -> None:
        """Record that there is no memory for the next spec."""
        method = self._left.pop(0).plan.method
        self._refused = self._refused or method

    @property
    def best(self) -> ProgramSpec:
        """The spec with the fastest steps; its plan's summary reports the trial."""
        return self._with_results(min(self._took, key=lambda row: row[0])[1])

    @property
    def last(self) -> ProgramSpec:
        """The running spec, used if there is no memory for the best one."""
        self._refused = self.best.plan.method
        return self._with_results(self._took[-1][1])

    def _method(self, number: int) -> str:
        """Return how a plan that ran was made."""
        return self._took[number][1].plan.method

    def _with_results(self, spec: ProgramSpec) -> ProgramSpec:
        tried = tuple((self._method(n), row[0]) for n, row in enumerate(self._took))
        first, summary = self._first.plan, spec.plan.summary
        assert first.summary is not None
        assert first.summary.recosted is not None
        # only a policy's plan is tried, and it has a summary
        assert summary is not None
        recosted = replace(
            first.summary.recosted,
            refused=self._refused,
            tried=tried if tried[1:] else (),
        )
        if spec is not self._first:
            recosted = replace(
                recosted, replaced=first.method, replaced_seconds=first.elapsed_seconds
            )
        plan = replace(spec.plan, summary=replace(summary, recosted=recosted))
        return replace(spec, plan=plan, timed=False, passive=False)
