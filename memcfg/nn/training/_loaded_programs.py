"""The programs of a model that are loaded, all in one arena.

Owns which programs these are, for which batch sizes. Refuses planning decisions, which
are the policy's, memory, which is the executor's, and steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.errors import ResourceExhaustedError
from memcfg.nn.training._execution_modes import way_of
from memcfg.nn.training._resident_values import ResidentValues
from memcfg.nn.training._tracing import Program, Recipe, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.plan import Plan

__all__ = ["LoadedPrograms"]

_KEPT = 12  # programs of a model that stay loaded; they share one arena


class LoadedPrograms(ResidentValues):
    """The state of a model and the programs that work on it.

    Parameters
    ----------
    recipe : Recipe
        What to trace; its optimizer joins the arena with the first training step.
    policy : Policy
        Plans the programs that are planned.
    modes : Modes
        Which are, and how the others run.
    device : str or None
        The name of the device that has the arena, looked up whenever there is none
        yet. None: the default device of that moment.
    lock : Lock
        The model's.
    values : mapping of str to numpy.ndarray, optional
        Values of weights and optimizer state by tensor name; weights without one
        are drawn by their initializers, state starts from zero.
    """

    @property
    def lead(self) -> Program | None:
        """The program that reports speak of: the last training step that was loaded."""
        found = self._lead
        return None if found is None or not self._is_loaded(found) else found

    def require(self, wanted: Sequence[Program], promised: int = 0) -> None:
        """See to it that programs are loaded, all at once.

        Parameters
        ----------
        wanted : sequence of Program
            The most important first.
        promised : int, default 0
            Bytes of the device to leave to what is about to be read.

        Raises
        ------
        InfeasiblePlanError
            If one of them does not fit the device; nothing changed.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device no longer exists, another thread compiled the model, or it is
            in the middle of a step in this thread.
        """
        with self.lock.turn():
            self.lock.require_no_step()
            self._require(wanted, promised)

    def ensure(self, program: Program) -> None:
        """Load a program if it is new, or if another thread's call took its place.

        What reports speak of stays what it was, as long as that is loaded.

        Parameters
        ----------
        program : Program
            One of a batch size that was not known before, or that was required.

        Raises
        ------
        InfeasiblePlanError
            If it no longer fits the device; nothing changed.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device no longer exists, or another thread compiled the model.
        """
        with self.lock.turn():
            self._check_current()
            if self._is_loaded(program):
                self._use(program)
                return
            lead = self.lead
            self._require([program], 0)
            if lead is not None and self._is_loaded(lead):
                self._lead = lead

    def _require(self, wanted: Sequence[Program], promised: int) -> None:
        self._check_current()
        for program in reversed(wanted):
            self._use(program)
        loaded = all(map(self._is_loaded, wanted))
        if not loaded or not self._leaves(promised):
            training = self._training or any(p.kind == "train" for p in wanted)
            self._load(wanted, training, promised)
        if wanted[0].kind == "train" or self.lead is None or not self._training:
            self._lead = wanted[0]

    def _use(self, program: Program) -> None:
        """Note that a program was used last."""
        self._used.pop(program, None)
        self._used[program] = None

    def plan(self, program: Program) -> Plan:
        """Plan a program without taking memory.

        Parameters
        ----------
        program : Program
            Which program, for how many samples.

        Returns
        -------
        Plan
            What loading it would run.

        Raises
        ------
        InfeasiblePlanError
            If it does not fit the device.
        RuntimeError
            If the device no longer exists, or the program is not planned.
        """
        with self.lock.turn():
            self.lock.require_no_step()
            self._check_planned(program)
            training = self._training or program.kind == "train"
            graph = trace(self._recipe_for(training), program)
            return self.executor.plan(graph, self._policy)

    def loaded_plan(self, program: Program) -> Plan:
        """Return the plan of a loaded program.

        Parameters
        ----------
        program : Program
            A loaded program.

        Returns
        -------
        Plan
            Its plan.

        Raises
        ------
        RuntimeError
            If it is not planned.
        """
        self._check_planned(program)
        return self.executor.plans[program.label]

    def _check_planned(self, program: Program) -> None:
        if program.kind in self._walked:
            raise RuntimeError(
                f"{program.label!r} has no plan: it runs in workspace mode "
                f"{self._modes.of(program.kind).value!r}. memory_report() says what it "
                "takes; compile with mode 'enabled' to have it planned"
            )

    def _recipe_for(self, training: bool) -> Recipe:
        return self._recipe if training else replace(self._recipe, optimizer=None)

    def _leaves(self, promised: int) -> bool:
        """Whether so many bytes are left as it is."""
        left = self.executor.left_bytes if promised else None
        return left is None or left >= promised

    def _load(self, wanted: Sequence[Program], training: bool, promised: int) -> None:
        """Load `wanted` beside what is loaded; alone, if together they do not fit."""
        others = [p for p in reversed(self._graphs) if p not in wanted]
        lead = self.lead
        if lead in others:
            others.remove(lead)
            others.insert(0, lead)
        others = others[: max(0, _KEPT - len(wanted))]
        try:
            self._load_exactly([*wanted, *others], training, promised)
        except ResourceExhaustedError:
            if not others:
                raise
            self._load_exactly(wanted, training, promised)

    def _load_exactly(
        self, programs: Sequence[Program], training: bool, promised: int
    ) -> None:
        recipe = self._recipe_for(training)
        known = self._graphs if training == self._training else {}
        graphs = {p: known.get(p) or trace(recipe, p) for p in programs}
        initial = self._host.initial(graphs[programs[0]], self._resident)
        self._views = {}  # they would point into rooms of the programs before
        ways = {p.label: way_of(self._modes.of(p.kind)) for p in programs}
        self.executor.load(
            {p.label: graph for p, graph in graphs.items()},
            self._policy,
            initial,
            {label: way for label, way in ways.items() if way is not None},
            promised=promised,
        )
        self._host.forget(initial)
