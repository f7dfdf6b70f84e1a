"""Elements of many inner datasets in turns: `Dataset.interleave` and `flat_map`.

Owns how many places there are. Refuses turns, which `_inner_passes` takes, and threads,
which `_prepared_turns` has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memcfg.data._checks import count
from memcfg.data._options import Options
from memcfg.data.elements._spec import vague
from memcfg.data.engine._budgets import cores
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.engine._parallel_step import AUTOTUNE, checked_calls, is_ordered
from memcfg.data.ops._inner_passes import Inners, in_turns
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node
from memcfg.data.ops._prepared_turns import PreparedTurns, in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run

__all__ = ["FlatMap", "Interleave"]

_AHEAD = 3  # threads of TensorFlow for each place of its cycle


@dataclass(frozen=True, eq=False)
class _Inner(Node):
    """What the steps of this module have in common."""

    source: Node
    map_func: Callable[[Any], Node]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @cached_property
    def element_spec(self) -> Any:
        """What the dataset made of the first element has; sizes are None."""
        with DatasetIterator(self.source, Options(), probing=True) as elements:
            for element in elements:
                return vague(self.map_func(element).element_spec)
        raise ValueError("there is no element to tell the element_spec from")

    @property
    def is_probed(self) -> bool:
        """Yes: what datasets the function makes is not known before it is called."""
        return True

    @property
    def cardinality(self) -> int:
        """Unknown, as in tf.data."""
        return UNKNOWN

    def _inners(self, run: Run) -> Inners:
        return Inners(self.source.elements(run), self.map_func, run)


@dataclass(frozen=True, eq=False)
class FlatMap(_Inner):
    """Elements of inner datasets, one dataset after the other.

    Parameters
    ----------
    source : Node
        The step before.
    map_func : callable
        Makes a step of an element.
    name : str
        For messages and reports.
    """

    name: str = "flat_map"

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the elements.
        """
        return in_turns(self._inners(run), 1, 1)


@dataclass(frozen=True, eq=False)
class Interleave(_Inner):
    """Elements of inner datasets in turns.

    Parameters
    ----------
    source : Node
        The step before.
    map_func : callable
        Makes a step of an element. Threads may call it at the same time.
    cycle_length : int, optional
        Of how many inner datasets; None and -1 (AUTOTUNE) choose by the number of
        processors, as TensorFlow does.
    block_length : int, optional
        How many elements are taken in a turn; None: 1.
    num_parallel_calls : int, optional
        How many threads prepare the next turns; -1 is AUTOTUNE, None prepares nothing.
    deterministic : bool, optional
        Whether the order is the same with threads as without; None: as the options say.
    name : str
        For messages and reports.

    Raises
    ------
    TypeError
        If a number is no integer, or `deterministic` no bool.
    ValueError
        If a number is not positive, or there are more threads than inner datasets.
    """

    cycle_length: int | None = None
    block_length: int | None = None
    num_parallel_calls: int | None = None
    deterministic: bool | None = None
    name: str = "interleave"

    def __post_init__(self) -> None:
        if self.cycle_length not in (None, AUTOTUNE):
            count(self.cycle_length, "cycle_length")
        if self.block_length is not None:
            count(self.block_length, "block_length")
        calls = checked_calls(self.num_parallel_calls, self.deterministic)
        cycle = self.cycle_length
        if calls is not None and cycle not in (None, AUTOTUNE) and calls > cycle:
            raise ValueError(
                f"num_parallel_calls is at most cycle_length ({cycle}), not {calls}"
            )

    @property
    def cardinality(self) -> int:
        """Unknown; with threads, infinite where the step before is, as in tf.data."""
        if self.num_parallel_calls is None:
            return UNKNOWN
        return INFINITE if self.source.cardinality == INFINITE else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the elements.
        """
        inners, block = self._inners(run), self.block_length or 1
        places = self._places(cores())
        if self.num_parallel_calls is None:
            return in_turns(inners, places, block)
        turns = PreparedTurns(
            inners,
            places,
            block,
            calls=self.num_parallel_calls,
            ordered=is_ordered(run, self.deterministic),
            name=self.name,
        )
        return in_parallel(turns)

    def _places(self, processors: int) -> int:
        if self.cycle_length not in (None, AUTOTUNE):
            return self.cycle_length
        if self.num_parallel_calls is None:
            return processors
        if self.num_parallel_calls == AUTOTUNE:
            return -(-processors // _AHEAD)
        return min(self.num_parallel_calls, processors)
