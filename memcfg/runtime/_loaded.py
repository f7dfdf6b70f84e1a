"""The programs of one model, loaded into the arena that they share.

Owns loading: plan everything, check it against the device's budget, and only then
take memory. State lies at the same place in every program (plans put it first, in
order), so training, evaluation and prediction see the same weights. Refuses to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from memcfg._core import Lock
from memcfg.errors import ResourceExhaustedError
from memcfg.runtime._budget import Budget, ends_of_pages
from memcfg.runtime._recipes import PolicyLike, Recipe, recipes_for
from memcfg.runtime._state import ModelArena, check_load, state_offsets
from memcfg.units import align_up

if TYPE_CHECKING:
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.plan import Plan
    from memcfg.runtime._runnable import Runnable
    from memcfg.runtime._ways import Way

__all__ = ["Loaded"]

_Array = npt.NDArray[np.generic]
_Value = npt.ArrayLike | Callable[[], npt.ArrayLike]


class Loaded:
    """The part of an executor that has programs and state.

    Parameters
    ----------
    device : Device
        Its pool pays for the arena.
    name : str
        The owner's name in error messages and listings.
    lock : Lock, optional
        The owner's; None makes one.
    """

    def __init__(self, device: Device, *, name: str, lock: Lock | None = None) -> None:
        self.device = device
        self.name = name
        self.lock = Lock(name) if lock is None else lock
        self._arena = ModelArena(device.pool, name)
        self._recipes: dict[str, Recipe] = {}
        self._programs: dict[str, Runnable] = {}
        self._settled: Runnable | None = None  # may keep memory beside the arena

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan of each loaded program that has one."""
        return {
            name: recipe.plan
            for name, recipe in self._recipes.items()
            if recipe.plan is not None
        }

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graph of each loaded program, with its scratch sizes."""
        return {name: recipe.graph for name, recipe in self._recipes.items()}

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes; 0 before the first load."""
        return self._arena.nbytes

    @property
    def left_bytes(self) -> int | None:
        """Bytes that the device has left; None without a limit."""
        limit = self.device.pool.limit
        return None if limit is None else limit - self.device.pool.stats().current_bytes

    def plan(self, graph: Graph, policy: PolicyLike) -> Plan:
        """Plan a graph under the device's budget without taking memory.

        Parameters
        ----------
        graph : Graph
            A traced step.
        policy : Policy
            Such as ``memcfg.plan.auto()``.

        Returns
        -------
        Plan
            The plan that `load` would run.

        Raises
        ------
        InfeasiblePlanError
            If nothing fits.
        """
        with self.lock.turn():
            self._settle()
            recipes = recipes_for({"": graph}, policy, {}, self._budget(), {})
            return cast("Plan", recipes[""].plan)

    def load(
        self,
        graphs: Mapping[str, Graph],
        policy: PolicyLike,
        initial: Mapping[str, _Value],
        ways: Mapping[str, Way] | None = None,
        *,
        promised: int = 0,
    ) -> None:
        """Replace the programs by those of `graphs`.

        State that is loaded already keeps its value; state that is new takes it
        from `initial`. The arena grows or shrinks to the largest peak; it stays as
        it is while a view that `feed` or `fetch` returned is in use.

        Parameters
        ----------
        graphs : mapping of str to Graph
            Program names to graphs that list the same state, in the same order.
        policy : Policy
            Plans each of them.
        initial : mapping of str to array_like or callable
            Values of new state, by tensor name; a callable is asked for its value
            after the memory has been taken, one at a time.
        ways : mapping of str to Way, optional
            How programs run that are not planned; those that it names.
        promised : int, default 0
            Bytes of the device to leave to others, beside what they have now.

        Raises
        ------
        InfeasiblePlanError
            If a graph has no plan within the budget, or its way needs more. No memory
            was taken, and the programs are as they were.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device is simulated.
        PlanError
            If the independent validator refutes the policy's plan.
        ValueError
            If the graphs disagree about the state, or state has no value.
        """
        with self.lock.turn():
            check_load(self.device, graphs, {*state_offsets(self._recipes), *initial})
            self._settle()
            make = partial(recipes_for, graphs, policy, ways or {}, known=self._recipes)
            try:
                self._replace(make(self._budget(promised)), initial)
            except ResourceExhaustedError as error:
                ends = ends_of_pages(error)
                if not ends:
                    raise
                self._replace(make(self._budget(promised + ends)), initial)

    def read_state(self, tensor: str) -> _Array:
        """Return a copy of a state tensor.

        Parameters
        ----------
        tensor : str
            Its name.

        Returns
        -------
        ndarray
            A copy.

        Raises
        ------
        KeyError
            If nothing is loaded or no such state exists.
        """
        with self.lock.turn():
            return self._state_view(tensor).copy()

    def write_state(self, tensor: str, value: npt.ArrayLike) -> None:
        """Overwrite a state tensor.

        Parameters
        ----------
        tensor : str
            Its name.
        value : array_like
            An array of exactly its shape.

        Raises
        ------
        KeyError
            If nothing is loaded or no such state exists.
        ValueError
            If the shape differs.
        """
        with self.lock.turn():
            room = self._state_view(tensor)
            array = np.asarray(value, room.dtype)
            if array.shape != room.shape:
                raise ValueError(
                    f"{tensor!r} has shape {room.shape}, not {array.shape}"
                )
            room[...] = array

    def close(self) -> None:
        """Give the arena back; the executor can be loaded again.

        Raises
        ------
        BufferError
            If a view that `feed` or `fetch` returned is still in use.
        """
        with self.lock.turn():
            self._settle()
            self._keep({})
            self._recipes = {}
            self._arena.free()

    def _turn(self, name: str) -> Runnable:
        """Let a program work; the one before gives back what it kept for itself."""
        program = self._programs[name]
        if self._settled is not program:
            self._settle()
            self._settled = program
        return program

    def _settle(self) -> None:
        """Have nothing beside the arena."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.give_back()

    def _budget(self, promised: int = 0) -> Budget:
        elsewhere = self.device.pool.stats().current_bytes - self.nbytes
        return Budget(self.device, self.name, elsewhere, promised)

    def _replace(
        self, recipes: Mapping[str, Recipe], initial: Mapping[str, _Value]
    ) -> None:
        """Have the programs of these recipes; those from before if that fails."""
        before, moved = self._recipes, self._moved(recipes)
        new = state_offsets(recipes).keys() - state_offsets(before).keys()
        try:
            self._install(recipes, moved)
            for name in new:
                value = initial[name]
                self.write_state(name, value() if callable(value) else value)
        except BaseException:
            self._install(before, moved)
            raise

    def _moved(self, recipes: Mapping[str, Recipe]) -> dict[str, _Array]:
        """Copy the state that `recipes` place elsewhere than the programs do now."""
        here, there = state_offsets(self._recipes), state_offsets(recipes)
        return {
            name: self.read_state(name)
            for name, offset in here.items()
            if there.get(name) != offset
        }

    def _install(
        self, recipes: Mapping[str, Recipe], moved: Mapping[str, _Array]
    ) -> None:
        """Fit the arena, compile what is not compiled, put moved state in place."""
        if not recipes:
            self.close()
            return
        nbytes = align_up(max(recipe.arena_bytes for recipe in recipes.values()))
        if nbytes < self.nbytes:
            self._keep({})  # they point into the arena
        self._arena.fit(nbytes)
        self._keep({name: self._program(name, each) for name, each in recipes.items()})
        self._recipes = dict(recipes)
        for name in moved.keys() & state_offsets(recipes).keys():
            self.write_state(name, moved[name])

    def _program(self, name: str, recipe: Recipe) -> Runnable:
        if name in self._programs and self._recipes.get(name) is recipe:
            return self._programs[name]
        return recipe.program(self._arena.get(), self.device, self.name)

    def _keep(self, programs: dict[str, Runnable]) -> None:
        """Have these programs and no others."""
        before, self._programs = self._programs, programs
        for program in before.values():
            if program not in programs.values():
                program.close()

    def _state_view(self, tensor: str) -> _Array:
        if not self._programs or tensor not in state_offsets(self._recipes):
            raise KeyError(f"{self.name} has no state {tensor!r} loaded")
        return next(iter(self._programs.values())).view(tensor, at_end=False)
