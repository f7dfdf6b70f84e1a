"""The programs of one model and the arena that they share.

Owns loading: plan everything, check it against the device's budget, and only then
take memory. State lies at the same place in every program (plans put it first, in
order), so training, evaluation and prediction see the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcfg import plan as planning
from memcfg.errors import InfeasiblePlanError
from memcfg.runtime._kernels import annotate, kernels_for
from memcfg.runtime._measure import measure
from memcfg.runtime._program import Program
from memcfg.units import align_up

if TYPE_CHECKING:
    from memcfg._core.engine import Arena
    from memcfg.devices import BoundlessKernel, CpuDevice
    from memcfg.graph import Graph
    from memcfg.runtime._report import MemoryReport

__all__ = ["Executor"]

_Array = npt.NDArray[np.generic]
_Policy = Callable[..., planning.Plan]


class Executor:
    """Run the programs of one model in one arena of a device.

    Parameters
    ----------
    device : CpuDevice
        Its pool pays for the arena, its kernels compute.
    name : str
        The owner's name in error messages and listings.
    """

    def __init__(self, device: CpuDevice, *, name: str) -> None:
        self.device = device
        self.name = name
        self._arena: Arena | None = None
        self._programs: dict[str, Program] = {}

    @property
    def plans(self) -> Mapping[str, planning.Plan]:
        """The plan of each loaded program."""
        return {name: program.plan for name, program in self._programs.items()}

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graph of each loaded program, with its scratch sizes."""
        return {name: program.graph for name, program in self._programs.items()}

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes; 0 before the first load."""
        return 0 if self._arena is None else self._arena.nbytes

    def plan(self, graph: Graph, policy: _Policy) -> planning.Plan:
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
        prepared = {"": self._prepare(graph)}
        return self._plan_all(prepared, policy)[""]

    def load(
        self,
        graphs: Mapping[str, Graph],
        policy: _Policy,
        initial: Mapping[str, npt.ArrayLike],
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
        initial : mapping of str to array_like
            Values of new state, by tensor name.

        Raises
        ------
        InfeasiblePlanError
            If a graph has no plan within the budget. No memory was taken, and the
            programs are as they were.
        ResourceExhaustedError
            If the machine has not the memory that the limit allows.
        PlanError
            If the independent validator refutes the policy's plan.
        ValueError
            If the graphs disagree about the state, or state has no value.
        """
        _check_state(graphs)
        prepared = {name: self._prepare(graph) for name, graph in graphs.items()}
        plans = self._plan_all(prepared, policy)
        state = self._state_values(graphs, initial)
        arena = self._fit(max(plan.peak_bytes for plan in plans.values()))
        self._programs = {
            name: Program(graph, plans[name], kernels, arena)
            for name, (graph, kernels) in prepared.items()
        }
        for name, value in state.items():
            self.write_state(name, value)

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
        return self._programs[program].view(tensor, at_end=False)

    def run(self, program: str, *, guard: bool = False) -> bool:
        """Run a program once.

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
        RuntimeError
            If the program is already running in another thread.
        """
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
        room = self._state_view(tensor)
        array = np.asarray(value, room.dtype)
        if array.shape != room.shape:
            raise ValueError(f"{tensor!r} has shape {room.shape}, not {array.shape}")
        room[...] = array

    def memory_report(self, program: str, *, verify: bool = False) -> MemoryReport:
        """Tell what a program's step takes.

        Parameters
        ----------
        program : str
            A loaded program.
        verify : bool, default False
            Measure: fill the arena with a canary, run the program on made-up input
            and look for the highest byte that changed. State is put back.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline.

        Raises
        ------
        KeyError
            If there is no such program.
        """
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
        self._programs = {}
        if self._arena is not None:
            self._arena.free()
            self._arena = None

    def _prepare(self, graph: Graph) -> tuple[Graph, tuple[BoundlessKernel, ...]]:
        kernels = kernels_for(graph, self.device)
        return annotate(graph, kernels), kernels

    def _plan_all(
        self,
        prepared: Mapping[str, tuple[Graph, tuple[BoundlessKernel, ...]]],
        policy: _Policy,
    ) -> dict[str, planning.Plan]:
        elsewhere = self.device.pool.stats().current_bytes - self.nbytes
        limit = self.device.pool.limit
        budget = None if limit is None else max(limit - elsewhere, 0)
        plans, failures = {}, []
        for name, (graph, _) in prepared.items():
            try:
                plans[name] = policy(graph, limit_bytes=budget)
            except InfeasiblePlanError as error:
                failures.append(error)
        if failures:
            raise self._infeasible(failures, elsewhere)
        for name, plan in plans.items():
            planning.validate(prepared[name][0], plan)
        return plans

    def _infeasible(
        self, failures: list[InfeasiblePlanError], elsewhere: int
    ) -> InfeasiblePlanError:
        worst = max(failures, key=lambda error: error.smallest_limit_bytes)
        limit = self.device.pool.limit
        others = dict(self.device.pool.owners())
        others.pop(self.name, None)
        return InfeasiblePlanError(
            f"{self.name} does not fit.",
            smallest_limit_bytes=worst.smallest_limit_bytes + elsewhere,
            lower_bound_bytes=worst.lower_bound_bytes + elsewhere,
            requested_bytes=worst.smallest_limit_bytes,
            in_use_bytes=elsewhere,
            limit_bytes=limit,
            largest_free_bytes=None if limit is None else max(limit - elsewhere, 0),
            device=self.device.name,
            owners=others,
            hint="Raise the limit, lower the batch size, or allow another method.",
        )

    def _state_values(
        self, graphs: Mapping[str, Graph], initial: Mapping[str, npt.ArrayLike]
    ) -> dict[str, npt.ArrayLike]:
        graph = next(iter(graphs.values()))
        names = [graph.tensors[i].name for i in graph.persistent]
        values: dict[str, npt.ArrayLike] = {}
        for name in names:
            try:
                values[name] = self.read_state(name)
            except KeyError:
                if name not in initial:
                    raise ValueError(f"state {name!r} has no value") from None
                values[name] = initial[name]
        return values

    def _state_view(self, tensor: str) -> _Array:
        if not self._programs:
            raise KeyError(f"{self.name} has no program loaded")
        return next(iter(self._programs.values())).view(tensor, at_end=False)

    def _fit(self, nbytes: int) -> Arena:
        if self._arena is None:
            self._arena = self.device.pool.arena(owner=self.name)
        if align_up(nbytes) < self._arena.nbytes:
            self._programs = {}  # they point into the arena
            with suppress(BufferError):  # a view is out: the arena stays as it is
                self._arena.shrink(nbytes)
        else:
            self._arena.grow(nbytes)
        return self._arena


def _check_state(graphs: Mapping[str, Graph]) -> None:
    if not graphs:
        raise ValueError("there is nothing to load")
    states = {
        tuple((graph.tensors[i].name, graph.tensors[i].shape) for i in graph.persistent)
        for graph in graphs.values()
    }
    if len(states) > 1:
        raise ValueError("the graphs of one model must list the same state")
