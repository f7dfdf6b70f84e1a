"""A model's values: on the host before the first program, then in the arena.

Owns where each weight is now, and the executor. Refuses to load programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.nn.training._device import device_of
from memcfg.nn.training._execution_modes import way_of
from memcfg.nn.training._host_values import Floats, HostValues
from memcfg.nn.training._tracing import KINDS, Program, Recipe
from memcfg.runtime import Executor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memcfg._core import Lock
    from memcfg.graph import Graph
    from memcfg.nn.training._execution_modes import Modes
    from memcfg.nn.training._rooms import Rooms
    from memcfg.plan import Policy

__all__ = ["ResidentValues"]


class ResidentValues:
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

    def __init__(
        self,
        recipe: Recipe,
        policy: Policy,
        modes: Modes,
        device: str | None,
        lock: Lock,
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
        self._used: dict[Program, None] = {}  # programs, last used last; not all loaded
        self._views: dict[tuple[Program, object], Rooms] = {}
        self._bound: set[Program] = set()  # those that read a user's array
        self._lead: Program | None = None
        self._executor: Executor | None = None

    # What is loaded is the executor's to say: it changes in one act, also when an
    # interrupt ends a call at the wrong moment.

    @property
    def _graphs(self) -> dict[Program, Graph]:
        """The loaded programs, last used last."""
        graphs = {} if self._executor is None else self._executor.sources
        return {p: graphs[p.label] for p in self._used if p.label in graphs}

    @property
    def _resident(self) -> Collection[str]:
        """The names of the state in the arena; the host's values of it are old."""
        return () if self._executor is None else self._executor.state

    @property
    def _training(self) -> bool:
        """Whether the optimizer's state is in the arena."""
        weights = {weight.name for weight in self._recipe.network.weights}
        return not weights.issuperset(self._resident) or any(
            program.kind == "train" for program in self._graphs
        )

    def _is_loaded(self, program: Program) -> bool:
        return self._executor is not None and self._executor.has(program.label)

    @property
    def executor(self) -> Executor:
        """The executor; made without memory.

        While it has none, the device is looked up by its name each time: the one it
        was made for may be gone since `memcfg.config.reset`.
        """
        with self.lock.turn():
            if self._executor is None or not self._executor.nbytes:
                device = device_of(self._recipe.name, self._device)
                if self._executor is None or self._executor.device is not device:
                    self._executor = Executor(
                        device, name=self._recipe.name, lock=self.lock
                    )
            return self._executor

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
        with self.lock.turn():
            if name in self._resident:
                return np.asarray(self.executor.read_state(name), np.float32)
            return self._host.read(name)

    def values(self) -> dict[str, Floats]:
        """Return copies of all values, of one moment between two steps.

        Returns
        -------
        dict of str to numpy.ndarray
            By tensor name; weights that were not drawn yet are.
        """
        with self.lock.turn():
            names = dict.fromkeys([*self._host.names(), *self._resident])
            return {name: self.read(name) for name in names}

    def write(self, name: str, value: Floats) -> None:
        """Overwrite a weight.

        Parameters
        ----------
        name : str
            A tensor name.
        value : numpy.ndarray
            float32 of the weight's shape; the caller must not change it afterwards.
        """
        with self.lock.turn():
            if name in self._resident:
                self.executor.write_state(name, value)
            else:
                self._host.write(name, value)

    def retire(self) -> None:
        """Bring all values to the host and give the arena back."""
        with self.lock.turn():
            self.known_values()
            self.close()

    def known_values(self) -> dict[str, Floats]:
        """Copy all values to the host, and leave them in the arena.

        Returns
        -------
        dict of str to numpy.ndarray
            By tensor name; weights that were not drawn yet are not there.
        """
        with self.lock.turn():
            for name in self._resident:
                self._host.write(name, self.read(name))
            return self._host.known()

    def supersede(self) -> None:
        """Close for good: calls of other threads that still run on this end."""
        with self.lock.turn():
            self._superseded = True
            self.close()

    def close(self) -> None:
        """Give the arena back; what is in it is lost."""
        with self.lock.turn():
            self._views = {}
            if self._executor is not None:
                self._executor.close()

    def _check_current(self) -> None:
        if self._superseded:
            raise RuntimeError(
                f"another thread compiled or built {self._recipe.name!r} again: retry"
            )
