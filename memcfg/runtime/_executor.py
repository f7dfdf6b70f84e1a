"""The programs of one model and the arena that they share.

Owns loading: plan everything, check it against the device's budget, and only then
take memory. State lies at the same place in every program (plans put it first, in
order), so training, evaluation and prediction see the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcfg.runtime._gate import gate
from memcfg.runtime._measure import measure
from memcfg.runtime._program import Program
from memcfg.runtime._recipes import Budget, PolicyLike, Recipe, recipes_for
from memcfg.units import align_up

if TYPE_CHECKING:
    from memcfg._core.engine import Arena
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.plan import Plan
    from memcfg.runtime._report import MemoryReport

__all__ = ["Executor"]

_Array = npt.NDArray[np.generic]
_Value = npt.ArrayLike | Callable[[], npt.ArrayLike]


class Executor:
    """Run the programs of one model in one arena of a device.

    Parameters
    ----------
    device : Device
        Its pool pays for the arena, its kernels compute. On a simulated one programs
        can be planned only.
    name : str
        The owner's name in error messages and listings.

    Notes
    -----
    All programs work in one arena, so only one may be at work. Every method holds
    `lock`, a `threading.RLock`; who writes inputs, runs and reads outputs as one act
    holds it from the first to the last.
    """

    def __init__(self, device: Device, *, name: str) -> None:
        self.device = device
        self.name = name
        self.lock = RLock()
        self._arena: Arena | None = None
        self._recipes: dict[str, Recipe] = {}
        self._programs: dict[str, Program] = {}

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan of each loaded program."""
        return {name: recipe.plan for name, recipe in self._recipes.items()}

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graph of each loaded program, with its scratch sizes."""
        return {name: recipe.graph for name, recipe in self._recipes.items()}

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes; 0 before the first load."""
        return 0 if self._arena is None else self._arena.nbytes

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
        with self.lock:
            return recipes_for({"": graph}, policy, self._budget(), {})[""].plan

    def load(
        self,
        graphs: Mapping[str, Graph],
        policy: PolicyLike,
        initial: Mapping[str, _Value],
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

        Raises
        ------
        InfeasiblePlanError
            If a graph has no plan within the budget. No memory was taken, and the
            programs are as they were.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        RuntimeError
            If the device is simulated.
        PlanError
            If the independent validator refutes the policy's plan.
        ValueError
            If the graphs disagree about the state, or state has no value.
        """
        with self.lock:
            _check_runs(self.device)
            _check_state(graphs)
            self._check_values(graphs, initial)
            recipes = recipes_for(graphs, policy, self._budget(), self._recipes)
            before, moved = self._recipes, self._moved(recipes)
            new = _state(recipes).keys() - _state(before).keys()
            try:
                self._install(recipes, moved)
                for name in new:
                    value = initial[name]
                    self.write_state(name, value() if callable(value) else value)
            except BaseException:
                self._install(before, moved)
                raise

    def feed(self, program: str, tensor: str) -> _Array:
        """Return an input's room, to be written before each run.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of an input.

        Returns
        -------
        ndarray
            A view of the arena with the input's shape and dtype.

        Raises
        ------
        KeyError
            If there is no such program or input.
        """
        with self.lock:
            return self._programs[program].view(tensor, at_end=False)

    def run(self, program: str, *, guard: bool = False) -> bool:
        """Run a program once, when the process runs fewer programs than it may.

        Parameters
        ----------
        program : str
            A loaded program.
        guard : bool, default False
            Stop at a loss that is NaN or infinite, before any state has changed.

        Returns
        -------
        bool
            True if it ran to the end, False if the guard stopped it.

        Raises
        ------
        KeyError
            If there is no such program.
        KernelError
            If a kernel failed.
        """
        with self.lock, gate:
            return self._programs[program].run(guard=guard)

    def fetch(self, program: str, tensor: str) -> _Array:
        """Return a kept tensor's room.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of a tensor in the graph's `keep`.

        Returns
        -------
        ndarray
            A view of the arena, valid until the next run.

        Raises
        ------
        KeyError
            If there is no such program, or the tensor is not kept.
        """
        with self.lock:
            return self._programs[program].view(tensor, at_end=True)

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
        with self.lock:
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
        with self.lock:
            room = self._state_view(tensor)
            array = np.asarray(value, room.dtype)
            if array.shape != room.shape:
                raise ValueError(
                    f"{tensor!r} has shape {room.shape}, not {array.shape}"
                )
            room[...] = array

    def memory_report(self, program: str, *, verify: bool = False) -> MemoryReport:
        """Tell what a program's step takes.

        Parameters
        ----------
        program : str
            A loaded program.
        verify : bool, default False
            Measure: fill the arena with a canary, run the program on made-up input
            and look for the highest byte that changed; each kernel's scratch counts
            as handed over. State is put back.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline.

        Raises
        ------
        KeyError
            If there is no such program.
        """
        with self.lock, gate if verify else nullcontext():
            found = self._programs[program]
            assert self._arena is not None
            return measure(found, program, self.device, self._arena, verify=verify)

    def close(self) -> None:
        """Give the arena back; the executor can be loaded again.

        Raises
        ------
        BufferError
            If a view that `feed` or `fetch` returned is still in use.
        """
        with self.lock:
            self._recipes, self._programs = {}, {}
            if self._arena is not None:
                self._arena.free()
                self._arena = None

    def _budget(self) -> Budget:
        elsewhere = self.device.pool.stats().current_bytes - self.nbytes
        return Budget(self.device, self.name, elsewhere)

    def _check_values(
        self, graphs: Mapping[str, Graph], initial: Mapping[str, _Value]
    ) -> None:
        graph = next(iter(graphs.values()))
        for tensor in graph.persistent:
            name = graph.tensors[tensor].name
            if name not in _state(self._recipes) and name not in initial:
                raise ValueError(f"state {name!r} has no value")

    def _moved(self, recipes: Mapping[str, Recipe]) -> dict[str, _Array]:
        """Copy the state that `recipes` place elsewhere than the programs do now."""
        here, there = _state(self._recipes), _state(recipes)
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
        arena = self._fit(max(recipe.plan.peak_bytes for recipe in recipes.values()))
        self._programs = {
            name: self._program(name, recipe, arena) for name, recipe in recipes.items()
        }
        self._recipes = dict(recipes)
        for name in moved.keys() & _state(recipes).keys():
            self.write_state(name, moved[name])

    def _program(self, name: str, recipe: Recipe, arena: Arena) -> Program:
        if name in self._programs and self._recipes.get(name) is recipe:
            return self._programs[name]
        return Program(recipe.graph, recipe.plan, recipe.kernels, arena)

    def _state_view(self, tensor: str) -> _Array:
        if not self._programs or tensor not in _state(self._recipes):
            raise KeyError(f"{self.name} has no state {tensor!r} loaded")
        return next(iter(self._programs.values())).view(tensor, at_end=False)

    def _fit(self, nbytes: int) -> Arena:
        if self._arena is None:
            self._arena = self.device.pool.arena(tag=self.name)
        if align_up(nbytes) < self._arena.nbytes:
            self._programs = {}  # they point into the arena
            with suppress(BufferError):  # a view is out: the arena stays as it is
                self._arena.shrink(nbytes)
        else:
            self._arena.grow(nbytes)
        return self._arena


def _state(recipes: Mapping[str, Recipe]) -> dict[str, int]:
    """Offset of each state tensor: in order from 0, in every program."""
    offsets: dict[str, int] = {}
    end = 0
    for recipe in list(recipes.values())[:1]:
        for tensor in recipe.graph.persistent:
            found = recipe.graph.tensors[tensor]
            offsets[found.name] = end
            end += align_up(found.nbytes)
    return offsets


def _check_runs(device: Device) -> None:
    if device.simulated:
        raise RuntimeError(
            f"{device.name} is simulated: it has addresses without memory, so programs "
            "can be planned on it and not run; place the model on a CPU to run it"
        )


def _check_state(graphs: Mapping[str, Graph]) -> None:
    if not graphs:
        raise ValueError("there is nothing to load")
    states = {
        tuple((graph.tensors[i].name, graph.tensors[i].shape) for i in graph.persistent)
        for graph in graphs.values()
    }
    if len(states) > 1:
        raise ValueError("the graphs of one model must list the same state")
