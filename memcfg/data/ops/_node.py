"""A step of a pipeline, as a value: what it reads, and how it makes a pass.

Owns the protocol that datasets are built from. Refuses to know any step.

Two forms of a pass. `elements` yields element after element. `rows` is for data that
can be indexed: the pass is a stream of row numbers, which shuffling, repeating and
taking rearrange at next to no cost, and a batch is gathered at once. Both forms of a
pass give the same elements.

Memory: who pulls decides where fresh arrays lie. An element may lie in the workspace
that is current when it is pulled, and then is the puller's until it pulls again. A node
that keeps anything for longer pulls inside ``run.outside()``. No generator yields
inside a ``with`` block of a workspace or an allocator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from memcfg.data.engine._run import Run

__all__ = ["INFINITE", "UNKNOWN", "Node", "RowSource", "RowStream"]

INFINITE = -1  # a cardinality, as in tf.data
UNKNOWN = -2


class RowSource(Protocol):
    """Data whose elements have numbers."""

    def take(self, rows: npt.NDArray[np.int64]) -> Any:
        """Gather rows into fresh arrays, made where arrays are made now.

        Parameters
        ----------
        rows : numpy.ndarray
            Row numbers in any order, shape ``(n,)``.

        Returns
        -------
        nest of numpy.ndarray
            The elements, stacked along a new first axis.
        """

    def element(self, row: int) -> Any:
        """Return one element; arrays are read-only views where that is possible.

        Parameters
        ----------
        row : int
            Its number.

        Returns
        -------
        nest of numpy.ndarray
            The element.
        """


@dataclass(frozen=True, slots=True)
class RowStream:
    """A pass over data that can be indexed.

    Parameters
    ----------
    source : RowSource
        What the numbers mean.
    chunks : iterator of numpy.ndarray
        int64 row numbers, in contiguous chunks of any length but zero. A chunk is valid
        until the next one is pulled: its memory is used again.
    """

    source: RowSource
    chunks: Iterator[npt.NDArray[np.int64]]


class Node(ABC):
    """A step of a pipeline.

    A node never changes, and can make any number of passes at a time.

    Attributes
    ----------
    name : str
        What threads, messages and reports call it.
    """

    name: str

    @cached_property
    def hindsight(self) -> dict[str, dict[str, Any]]:
        """What passes that end here have learned of their steps, by name."""
        return {}

    @property
    @abstractmethod
    def inputs(self) -> tuple[Node, ...]:
        """The steps before."""

    @property
    @abstractmethod
    def element_spec(self) -> Any:
        """What the elements are: a nest of `TensorSpec`."""

    @property
    def is_probed(self) -> bool:
        """Whether `element_spec` has to run the pipeline, users' functions included."""
        return any(node.is_probed for node in self.inputs)

    @property
    @abstractmethod
    def cardinality(self) -> int:
        """How many elements a pass has; `INFINITE` or `UNKNOWN`."""

    @abstractmethod
    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, and those of the steps before, as tf.data does.

        A seeded shuffle draws anew whenever a pass begins, so this is no generator
        itself, and may return one.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the elements.
        """

    @property
    def has_rows(self) -> bool:
        """Whether `rows` can make a pass; asking begins none."""
        return False

    def rows(self, run: Run) -> RowStream:
        """Make a pass over row numbers.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        RowStream
            The pass.

        Raises
        ------
        NotImplementedError
            If `has_rows` is False.
        """
        raise NotImplementedError
