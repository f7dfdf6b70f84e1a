"""Steps of a model's programs: inputs in, a run, outputs out.

Owns where inputs and outputs lie. What looks at programs or changes them holds the
model's lock; whoever feeds, runs and fetches holds it from `Programs.ensure` to
`Programs.finish`, and keeps no view beyond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.training._loaded_programs import LoadedPrograms
from memcfg.nn.training._rooms import Rooms, input_rooms, output_rooms

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from memcfg._core import Counter
    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import Program
    from memcfg.runtime import Executor

__all__ = ["Programs"]


class Programs(LoadedPrograms):
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
        for bound in list(self._bound):  # by a step whose end was interrupted
            self.finish(bound)
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

    def bind(self, program: Program, name: str, array: npt.NDArray[Any]) -> bool:
        """Have a loaded program read an input where an array lies, until `finish`.

        Parameters
        ----------
        program : Program
            A loaded program, of whose inputs the rooms have been asked for.
        name : str
            The input.
        array : numpy.ndarray
            Its value; kept alive, and never written.

        Returns
        -------
        bool
            False if it must be copied into the input's room.
        """
        self._bound.add(program)
        return self.executor.bind(program.label, name, array)

    def run(
        self, program: Program, *, guard: bool = False, counter: Counter | None = None
    ) -> bool:
        """Run a loaded program once.

        Parameters
        ----------
        program : Program
            A loaded program, its inputs filled.
        guard : bool, default False
            Stop at a loss that is not finite.
        counter : Counter, optional
            Advanced by a run to the end; nothing comes between the two.

        Returns
        -------
        bool
            Whether it ran to the end.

        Raises
        ------
        ResourceExhaustedError
            If the program is not planned, and there is no room; the state is as before.
        """
        return self.executor.run(program.label, guard=guard, counter=counter)

    def finish(self, program: Program) -> None:
        """End a step, also one that failed: its inputs and outputs are done with.

        Parameters
        ----------
        program : Program
            A program.
        """
        if not self._bound and program.kind not in self._walked:
            return  # nothing is kept
        if self._executor is not None:
            self._executor.finish(program.label)
        self._bound.discard(program)

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
