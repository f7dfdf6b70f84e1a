"""A model's values and programs: on the host before the first, then in the arena.

Owns which programs are loaded, for which batch sizes, and where each weight is now.
Refuses planning decisions, which are the policy's, and memory, which is the
executor's.

What looks at programs or changes them holds the model's lock. Whoever feeds, runs and
fetches holds it from `Programs.ensure` to the last output, and keeps no view beyond.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memcfg.errors import ResourceExhaustedError
from memcfg.nn._device import device_of
from memcfg.nn._graphs import KINDS, Program, Recipe, trace
from memcfg.nn._rooms import Rooms, input_rooms, output_rooms
from memcfg.nn._values import Floats, HostValues
from memcfg.nn._ways import way_of
from memcfg.runtime import Executor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.nn._turns import TurnLock
    from memcfg.nn._ways import Modes
    from memcfg.plan import Plan, Policy

__all__ = ["Programs"]

_KEPT = 12  # programs of a model that stay loaded; they share one arena


class Programs:
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
    lock : TurnLock
        The model's.
    values : mapping of str to numpy.ndarray, optional
        Values of weights and optimizer state by tensor name; weights without one
        are drawn by their initializers, state starts from zero.
    """

    def __init__(
        self,
        recipe: Recipe,
        policy: Policy,
        modes: Modes,
        device: str | None,
        lock: TurnLock,
        values: Mapping[str, Floats] | None = None,
    ) -> None:
        self._recipe = recipe
        self._policy = policy
        self._modes = modes
        self._walked = {kind for kind in KINDS if way_of(modes.of(kind)) is not None}
        self._device = device
        self.lock = lock
        self._superseded = False
        self._host = HostValues(recipe.network.weights, values)
        self._resident: set[str] = set()  # names of the state in the arena
        self._training = False  # whether the optimizer's state is in the arena
        self._graphs: dict[Program, Graph] = {}  # loaded; last used last
        self._views: dict[tuple[Program, object], Rooms] = {}
        self._lead: Program | None = None
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """The executor; made without memory.

        While it has none, the device is looked up by its name each time: the one it
        was made for may be gone since `memcfg.config.reset`.
        """
        with self.lock:
            if self._executor is None or not self._executor.nbytes:
                device = device_of(self._recipe.name, self._device)
                if self._executor is None or self._executor.device is not device:
                    self._executor = Executor(device, name=self._recipe.name)
            return self._executor

    @property
    def lead(self) -> Program | None:
        """The program that reports speak of: the last training step that was loaded."""
        return self._lead

    def read(self, name: str) -> Floats:
        """Return a copy of a weight or of optimizer state.

        Parameters
        ----------
        name : str
            A tensor name.

        Returns
        -------
        numpy.ndarray
            float32.
        """
        with self.lock:
            if name in self._resident:
                return np.asarray(self.executor.read_state(name), np.float32)
            return self._host.read(name)

    def write(self, name: str, value: Floats) -> None:
        """Overwrite a weight.

        Parameters
        ----------
        name : str
            A tensor name.
        value : numpy.ndarray
            float32 of the weight's shape; the caller must not change it afterwards.
        """
        with self.lock:
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._host.write(name, value)

    def require(self, wanted: Sequence[Program]) -> None:
        """See to it that programs are loaded, all at once.

        Parameters
        ----------
        wanted : sequence of Program
            The most important first.

        Raises
        ------
        InfeasiblePlanError
            If one of them does not fit the device; nothing changed.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device no longer exists, or another thread compiled the model.
        """
        with self.lock:
            self._check_current()
            training = self._training or any(p.kind == "train" for p in wanted)
            if training != self._training or not set(wanted) <= self._graphs.keys():
                self._load(wanted, training)
            self._graphs |= {p: self._graphs.pop(p) for p in wanted}
            if wanted[0].kind == "train" or self._lead is None or not self._training:
                self._lead = wanted[0]

    def ensure(self, program: Program) -> None:
        """Load a program again if another thread's call took its place.

        Parameters
        ----------
        program : Program
            One that was required before.

        Raises
        ------
        InfeasiblePlanError
            If it no longer fits the device; nothing changed.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device no longer exists, or another thread compiled the model.
        """
        with self.lock:
            self._check_current()
            if program in self._graphs:
                self._graphs[program] = self._graphs.pop(program)
            else:
                self.require([program])

    def inputs(self, program: Program) -> Rooms:
        """Return the rooms of a loaded program's inputs.

        Parameters
        ----------
        program : Program
            A loaded program.

        Returns
        -------
        dict of str to numpy.ndarray
            Views of its memory, by name; those inputs that the program reads.

        Raises
        ------
        ResourceExhaustedError
            If the program is not planned, and there is no room.
        """
        return self._rooms(program, input_rooms)

    def outputs(self, program: Program) -> Rooms:
        """Return the rooms of what a loaded program keeps, state left out.

        Parameters
        ----------
        program : Program
            A loaded program.

        Returns
        -------
        dict of str to numpy.ndarray
            Views of its memory, by name; a prediction is named ``output``.
        """
        return self._rooms(program, output_rooms)

    def run(self, program: Program, *, guard: bool = False) -> bool:
        """Run a loaded program once.

        Parameters
        ----------
        program : Program
            A loaded program, its inputs filled.
        guard : bool, default False
            Stop at a loss that is not finite.

        Returns
        -------
        bool
            Whether it ran to the end.

        Raises
        ------
        ResourceExhaustedError
            If the program is not planned, and there is no room; the state is as before.
        """
        return self.executor.run(program.label, guard=guard)

    def finish(self, program: Program) -> None:
        """End a step, also one that failed: its inputs and outputs are done with.

        Parameters
        ----------
        program : Program
            A program.
        """
        if program.kind in self._walked and self._executor is not None:
            self._executor.finish(program.label)

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
        with self.lock:
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

    def retire(self) -> dict[str, Floats]:
        """Bring all values to the host and give the arena back.

        Returns
        -------
        dict of str to numpy.ndarray
            The values by tensor name.
        """
        with self.lock:
            for name in self._resident:
                self._host.write(name, self.read(name))
            self.close()
            return self._host.known()

    def supersede(self) -> dict[str, Floats]:
        """Retire for good: calls of other threads that still run on this end.

        Returns
        -------
        dict of str to numpy.ndarray
            The values by tensor name.
        """
        with self.lock:
            values = self.retire()
            self._superseded = True
            return values

    def close(self) -> None:
        """Give the arena back; what is in it is lost."""
        with self.lock:
            self._views = {}
            self._graphs = {}
            self._resident = set()
            self._training = False
            self._lead = None
            if self._executor is not None:
                self._executor.close()

    def _check_current(self) -> None:
        if self._superseded:
            raise RuntimeError(
                f"another thread compiled or built {self._recipe.name!r} again: retry"
            )

    def _check_planned(self, program: Program) -> None:
        if program.kind in self._walked:
            raise RuntimeError(
                f"{program.label!r} has no plan: it runs in workspace mode "
                f"{self._modes.of(program.kind).value!r}. memory_report() says what it "
                "takes; compile with mode 'enabled' to have it planned"
            )

    def _rooms(
        self, program: Program, find: Callable[[Executor, Program, Graph], Rooms]
    ) -> Rooms:
        """Find rooms, once for each planned program: the others' go with each step."""
        key = (program, find)
        if key in self._views:
            return self._views[key]
        rooms = find(self.executor, program, self._graphs[program])
        if program.kind not in self._walked:
            self._views[key] = rooms
        return rooms

    def _recipe_for(self, training: bool) -> Recipe:
        return self._recipe if training else replace(self._recipe, optimizer=None)

    def _load(self, wanted: Sequence[Program], training: bool) -> None:
        """Load `wanted` beside what is loaded; alone, if together they do not fit."""
        others = [p for p in reversed(self._graphs) if p not in wanted]
        if self._lead in others:
            others.remove(self._lead)
            others.insert(0, self._lead)
        others = others[: max(0, _KEPT - len(wanted))]
        try:
            self._load_exactly([*wanted, *others], training)
        except ResourceExhaustedError:
            if not others:
                raise
            self._load_exactly(wanted, training)

    def _load_exactly(self, programs: Sequence[Program], training: bool) -> None:
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
        )
        self._graphs = {p: graphs[p] for p in reversed(programs)}
        self._training = training
        self._resident |= set(initial)
        self._host.forget(initial)
        self._lead = self._lead if self._lead in self._graphs else None
