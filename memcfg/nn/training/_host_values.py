"""A model's values while they are on the host.

Owns weights that were not drawn yet, and those that a model took back from its arena.
Refuses to know what is in the arena; that is the programs'. All arrays are outside of
workspaces: they outlive whatever is open when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from memcfg.graph import Graph
    from memcfg.nn._network import Weight

__all__ = ["Floats", "HostValues", "Value"]

Floats = npt.NDArray[np.float32]
Value = Floats | Callable[[], npt.NDArray[Any]]


class HostValues:
    """Values by tensor name.

    Parameters
    ----------
    weights : iterable of Weight
        The model's.
    known : mapping of str to numpy.ndarray, optional
        Values; weights without one are drawn by their initializers, optimizer state
        starts from zero.
    """

    def __init__(
        self, weights: Iterable[Weight], known: Mapping[str, Floats] | None
    ) -> None:
        self._weights = {weight.name: weight for weight in weights}
        self._known: dict[str, Floats] = dict(known or {})

    def read(self, name: str) -> Floats:
        """Return a copy of a value; a weight is drawn if need be.

        Parameters
        ----------
        name : str
            A tensor name.

        Returns
        -------
        numpy.ndarray
            float32.
        """
        if name not in self._known:
            self._known[name] = self._weights[name].first_value()
        return self._known[name].copy()

    def write(self, name: str, value: Floats) -> None:
        """Note a value.

        Parameters
        ----------
        name : str
            A tensor name.
        value : numpy.ndarray
            float32; the caller must not change it afterwards.
        """
        self._known[name] = value

    def forget(self, names: Iterable[str]) -> None:
        """Drop values that are elsewhere now.

        Parameters
        ----------
        names : iterable of str
            Tensor names.
        """
        for name in names:
            self._known.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of the weights, and of what else is here."""
        return [*self._weights, *(self._known.keys() - self._weights.keys())]

    def known(self) -> dict[str, Floats]:
        """Return all values that are here.

        Returns
        -------
        dict of str to numpy.ndarray
            By tensor name.
        """
        return dict(self._known)

    def initial(self, graph: Graph, resident: Collection[str]) -> dict[str, Value]:
        """Return values for the state that is not in the arena yet.

        Parameters
        ----------
        graph : Graph
            Lists the state.
        resident : collection of str
            What is in the arena.

        Returns
        -------
        dict of str to (numpy.ndarray or callable)
            Those that are not here are drawn when they are asked for.
        """
        tensors = (graph.tensors[i] for i in graph.persistent)
        values: dict[str, Value] = {}
        for tensor in tensors:
            if tensor.name in resident:
                continue
            if tensor.name in self._known:
                values[tensor.name] = self._known[tensor.name]
            elif tensor.role == "optimizer_state":
                values[tensor.name] = partial(np.zeros, tensor.shape or (), np.float32)
            else:
                values[tensor.name] = self._weights[tensor.name].first_value
        return values
