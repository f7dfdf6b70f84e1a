"""What is done with the elements of a dataset, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from memcfg.data._dataset_core import DatasetCore, integer
from memcfg.data.elements._structure import call
from memcfg.data.ops._cache import Cache
from memcfg.data.ops._interleave import FlatMap, Interleave
from memcfg.data.ops._map import make_map
from memcfg.data.ops._prefetch import AUTOTUNE, Prefetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.data.ops._node import Node

__all__ = ["DatasetWork"]


class DatasetWork(DatasetCore):
    """Steps that make new elements, or keep them."""

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Call a function on each element.

        Parameters
        ----------
        map_func : callable
            A function of NumPy arrays and scalars. It takes an element, a tuple as so
            many arguments, and returns the new one: arrays, numbers, text and lists, in
            tuples and dicts. Arrays that it gets may be read-only.
        num_parallel_calls : int, optional
            Threads that call it, or `AUTOTUNE`: as many as save time, one a core at
            most. Functions that wait, such as for a network, gain by more: say a
            number, or `options.autotune.cpu_budget`. None: one call after the other.
        deterministic : bool, optional
            False: elements come as they are ready. None: as the options say.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            What the function returned; numbers are converted as in `from_tensors`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range; in the pass, if what
            the function returned can be no element.
        BaseException
            In the pass, what the function raised, behind the elements before.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).map(lambda x: 2 * x)]
        [0, 2, 4]
        """
        node = make_map(
            self._node, map_func, num_parallel_calls, deterministic, name or "map"
        )
        return self._then(node)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Make a dataset of each element, and take elements of several in turn.

        Parameters
        ----------
        map_func : callable
            Takes an element, a tuple as so many arguments; returns a dataset.
        cycle_length : int, optional
            Of how many datasets at a time. None or `AUTOTUNE`: chosen by the cores.
        block_length : int, optional
            How many elements of one before the next; 1 if None.
        num_parallel_calls : int, optional
            Threads that read the datasets, or `AUTOTUNE`. None: no other thread.
        deterministic : bool, optional
            False: elements come as they are ready. None: as the options say.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The elements of all of them.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range; in the pass, if the
            function returns no dataset.

        Examples
        --------
        >>> import memcfg as mc
        >>> def twice(x):
        ...     return mc.data.Dataset.from_tensors(x).repeat(2)
        >>> [int(x) for x in mc.data.Dataset.range(3).interleave(twice, cycle_length=2)]
        [0, 1, 0, 1, 2, 2]
        """
        node = Interleave(
            self._node,
            _nodes_of(map_func),
            cycle_length,
            block_length,
            num_parallel_calls,
            deterministic,
            name or "interleave",
        )
        return self._then(node)

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Self:
        """Make a dataset of each element, and read one behind the other.

        Parameters
        ----------
        map_func : callable
            Takes an element, a tuple as so many arguments; returns a dataset.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The elements of all of them.

        Raises
        ------
        TypeError
            If `map_func` is not callable; in the pass, if it returns no dataset.

        Examples
        --------
        >>> import memcfg as mc
        >>> rows = mc.data.Dataset.range(3).flat_map(mc.data.Dataset.range)
        >>> [int(x) for x in rows]
        [0, 0, 1]
        """
        return self._then(FlatMap(self._node, _nodes_of(map_func), name or "flat_map"))

    def cache(self, filename: str = "", name: str | None = None) -> Self:
        """Keep the elements of the first pass for those that follow.

        Parameters
        ----------
        filename : path, default ""
            Where; the empty string is memory, under the device's limit.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Arrays that it gives out are read-only.

        Raises
        ------
        TypeError
            If `filename` is no path.
        BlockingIOError
            In the pass, if another one is writing the file.
        FormatError
            In the pass, if the file is damaged, or of elements of another kind.

        Warns
        -----
        UserWarning
            Once, if a pass was left before its end: it keeps nothing.

        Notes
        -----
        A file that is there is read, and the steps before do not run: remove it when
        the data or a function changes.

        Examples
        --------
        >>> import memcfg as mc
        >>> def square(x):
        ...     print("squaring", x)
        ...     return x * x
        >>> data = mc.data.Dataset.range(2, 4).map(square).cache()
        >>> [int(x) for x in data]
        squaring 2
        squaring 3
        [4, 9]
        >>> [int(x) for x in data]
        [4, 9]
        """
        return self._then(Cache(self._node, filename, name or "cache"))

    def prefetch(self, buffer_size: int | None, name: str | None = None) -> Self:
        """Prepare elements ahead, by a thread of its own, in a ring of blocks.

        Parameters
        ----------
        buffer_size : int or None
            How many may wait. `AUTOTUNE`, which is -1, or None: chosen while it runs,
            by how long the reader waits. 0: none.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The same elements.

        Raises
        ------
        TypeError
            If `buffer_size` is no integer.
        ValueError
            If it is below -1.

        Examples
        --------
        >>> import memcfg as mc
        >>> data = mc.data.Dataset.range(5).batch(2).prefetch(mc.data.AUTOTUNE)
        >>> list(data)
        [array([0, 1]), array([2, 3]), array([4])]
        """
        size = AUTOTUNE if buffer_size is None else integer(buffer_size, "buffer_size")
        if size < AUTOTUNE:
            raise ValueError(f"buffer_size is 0 or more, or AUTOTUNE (-1), got {size}")
        return self._then(Prefetch(self._node, size, name or "prefetch"))


def _nodes_of(map_func: Callable[..., Any]) -> Callable[[Any], Node]:
    if not callable(map_func):
        raise TypeError(f"map_func is callable, not {type(map_func).__name__}")

    def node_of(element: Any) -> Node:
        found = call(map_func, element)
        if not isinstance(found, DatasetCore):
            raise TypeError(
                f"map_func is to return a dataset, and returned {type(found).__name__}"
            )
        return found._node

    return node_of
