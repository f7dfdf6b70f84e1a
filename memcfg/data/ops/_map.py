"""A user's function applied to each element: `Dataset.map`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._user_functions import apply, composed
from memcfg.data.engine._parallel_step import checked_calls, is_ordered
from memcfg.data.engine._probe import probe
from memcfg.data.ops._node import Node
from memcfg.data.ops._parallel_map import ParallelMapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.engine._run import Run

__all__ = ["Map", "ParallelMap", "make_map", "unmapped"]


@dataclass(frozen=True, eq=False)
class Map(Node):
    """Results of a function, one element after the other.

    Parameters
    ----------
    source : Node
        The step before.
    function : callable
        Takes an element; a tuple is unpacked into arguments.
    name : str
        For messages.
    """

    source: Node
    function: Callable[..., Any]
    name: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def is_probed(self) -> bool:
        """True: only the function knows."""
        return True

    @cached_property
    def element_spec(self) -> Any:
        """What the function makes of the first element."""
        return probe(self)

    @property
    def cardinality(self) -> int:
        """That of the step before."""
        return self.source.cardinality

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the results. It keeps neither an element nor a result.
        """
        return map(partial(apply, self.function), self.source.elements(run))


@dataclass(frozen=True, eq=False)
class ParallelMap(Map):
    """Results of a function that several threads call.

    Parameters
    ----------
    source : Node
        The step before.
    function : callable
        Takes an element; a tuple is unpacked into arguments.
    name : str
        For threads, messages and reports.
    calls : int
        Threads; -1 is AUTOTUNE.
    deterministic : bool or None
        Whether results keep the order of the elements; None: as the options say.
    """

    calls: int
    deterministic: bool | None

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the results.
        """
        return ParallelMapped(
            run,
            self.source.elements(run),
            self.function,
            self.calls,
            self.name,
            ordered=is_ordered(run, self.deterministic),
        )


def make_map(
    source: Node,
    map_func: Callable[..., Any],
    num_parallel_calls: int | None,
    deterministic: bool | None,
    name: str,
) -> Node:
    """Make the step of `Dataset.map`.

    Parameters
    ----------
    source : Node
        The step before.
    map_func : callable
        The function.
    num_parallel_calls : int or None
        Threads; -1 is AUTOTUNE, None calls one after the other.
    deterministic : bool or None
        Whether results keep the order of the elements; None: as the options say.
    name : str
        For threads, messages and reports.

    Returns
    -------
    Node
        The step.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If `num_parallel_calls` is neither positive nor -1.

    Warns
    -----
    UserWarning
        If `deterministic` is given and nothing is parallel.
    """
    if not callable(map_func):
        raise TypeError(f"map needs a function, not {map_func!r}")
    calls = checked_calls(num_parallel_calls, deterministic)
    if calls is None:
        return Map(source, map_func, name)
    return ParallelMap(source, map_func, name, calls, deterministic)


def unmapped(node: Node) -> tuple[Node, Callable[..., Any] | None]:
    """Take the functions off a step, to be applied by the step behind it.

    Parameters
    ----------
    node : Node
        Any step.

    Returns
    -------
    source : Node
        The step before all maps that work alike.
    function : callable or None
        What they do together; what it returns has not been converted.
    """
    functions, source = [], node
    while isinstance(source, Map) and _work_alike(source, node):
        functions.append(source.function)
        source = source.source
    return source, composed(functions[::-1]) if functions else None


def _work_alike(one: Map, other: Node) -> bool:
    if isinstance(one, ParallelMap) and isinstance(other, ParallelMap):
        same_order = one.deterministic == other.deterministic
        return one.calls == other.calls and same_order
    return type(one) is type(other)
