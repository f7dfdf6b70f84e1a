"""Plans of one program that real steps are trained under, to keep the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.runtime._program_specs import ProgramSpec


class Trial:
    """Specs of a program, of which each is run for some steps.

    Parameters
    ----------
    running : ProgramSpec
        What has run.
    first : ProgramSpec
        The same, costed by its steps.
    seconds : float
        The least seconds of such a step.
    others : iterable of ProgramSpec
        What is to run, in this order.
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
        """The one to run next; None: all have run."""
        return self._left[0] if self._left else None

    def note(self, seconds: float) -> None:
        """Note the least seconds of a step of the one that runs, the first time."""
        if not self._is_noted:
            self._took.append((seconds, self.running))
            self._is_noted = True

    def run_next(self) -> None:
        """Say that the next one is in place."""
        self.running, self._is_noted = self._left.pop(0), False

    def refuse_next(self) -> None:
        """Say that there is no memory for it."""
        method = self._left.pop(0).plan.method
        self._refused = self._refused or method

    @property
    def best(self) -> ProgramSpec:
        """The one of the fastest steps; its plan says what came of the trial."""
        return self._told(min(self._took, key=lambda row: row[0])[1])

    @property
    def last(self) -> ProgramSpec:
        """The one that runs, where there is no memory for the best."""
        self._refused = self.best.plan.method
        return self._told(self._took[-1][1])

    def _method(self, number: int) -> str:
        """Say how a plan that ran was made."""
        return self._took[number][1].plan.method

    def _told(self, spec: ProgramSpec) -> ProgramSpec:
        tried = tuple((self._method(n), row[0]) for n, row in enumerate(self._took))
        first, summary = self._first.plan, spec.plan.summary
        assert first.summary is not None
        assert first.summary.recosted is not None
        assert summary is not None  # or nothing would say who chose it
        told = replace(
            first.summary.recosted,
            refused=self._refused,
            tried=tried if tried[1:] else (),
        )
        if spec is not self._first:
            told = replace(
                told, replaced=first.method, replaced_seconds=first.elapsed_seconds
            )
        plan = replace(spec.plan, summary=replace(summary, recosted=told))
        return replace(spec, plan=plan, timed=False, passive=False)
