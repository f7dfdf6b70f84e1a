"""Where the elements of a dataset come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from memcfg.data._dataset_core import DatasetCore, integer
from memcfg.data._options import Options
from memcfg.data.elements._convert import as_element
from memcfg.data.elements._structure import flatten, map_structure
from memcfg.data.ops._combine import Zip
from memcfg.data.ops._generator import Generated, signature_of
from memcfg.data.ops._sources import Slices, sliced, whole
from memcfg.data.rows._range_rows import range_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["DatasetSources"]

_MOST = 2**63 - 1  # a cardinality is an int64


class DatasetSources(DatasetCore):
    """The makers of datasets."""

    @classmethod
    def from_tensors(cls, tensors: Any, name: str | None = None) -> Self:
        """Make the dataset of one element.

        Parameters
        ----------
        tensors : nest
            The element. Arrays are not copied; Python's numbers become int32 (int64
            where that is too small) and float32. A list is an array.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Arrays that it gives out are read-only views.

        Raises
        ------
        TypeError, ValueError
            If it can be no element: an object, a list that is not rectangular, a number
            out of range.

        Examples
        --------
        >>> import memcfg as mc
        >>> next(iter(mc.data.Dataset.from_tensors(([1, 2], 3.5))))
        (array([1, 2], dtype=int32), np.float32(3.5))
        """
        return cls(whole(tensors, name or "from_tensors"))

    @classmethod
    def from_tensor_slices(cls, tensors: Any, name: str | None = None) -> Self:
        """Make the dataset of the slices of arrays along their first axis.

        Parameters
        ----------
        tensors : nest
            Arrays that are equally long, as for `from_tensors`. They are not copied.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Arrays that it gives out are read-only views of the rows.

        Raises
        ------
        TypeError
            If these can be no arrays.
        ValueError
            If one has no axis, or they differ in length.

        Notes
        -----
        A file that is mapped into memory, as ``np.load(path, mmap_mode="r")`` and
        `numpy.memmap` do, is not read through its map: rows are read from the file, and
        the process does not grow as it would by the pages of a map.

        Examples
        --------
        >>> import memcfg as mc
        >>> arrays = {"x": [[1, 2], [3, 4]], "y": [5, 6]}
        >>> for element in mc.data.Dataset.from_tensor_slices(arrays):
        ...     print(element)
        {'x': array([1, 2], dtype=int32), 'y': np.int32(5)}
        {'x': array([3, 4], dtype=int32), 'y': np.int32(6)}
        """
        return cls(sliced(tensors, name or "from_tensor_slices"))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: tuple[Any, ...] | None = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Self:
        """Make the dataset of what a generator yields.

        Parameters
        ----------
        generator : callable
            Returns an iterable; called for each pass, in the thread that asks for its
            elements. A generator is closed at the end of the pass, early or not.
        output_types : nest of dtype, optional
            The older way to say what is yielded.
        output_shapes : nest of shape, optional
            With `output_types`.
        args : tuple, optional
            Arguments of the generator; Python's numbers are converted as elements are.
        output_signature : nest of TensorSpec, optional
            What is yielded. Without it, and without `output_types`, elements are
            converted as `from_tensors` does.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Its arrays are copies, for the generator may write to its own again.

        Raises
        ------
        TypeError
            If `generator` is not callable, or the description is none; in the pass, if
            an element is of another structure, or of a dtype that would lose values.
        ValueError
            In the pass, if an array is of another shape, or an integer out of range.

        Examples
        --------
        >>> import memcfg as mc
        >>> def count(stop):
        ...     yield from range(stop)
        >>> spec = mc.data.TensorSpec((), "int64")
        >>> make = mc.data.Dataset.from_generator
        >>> list(make(count, args=(3,), output_signature=spec))
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        if not callable(generator):
            raise TypeError(
                "generator is a callable that returns an iterable, not "
                f"{type(generator).__name__}"
            )
        signature = signature_of(output_types, output_shapes, output_signature)
        given = () if args is None else as_element(_arguments(args))
        return cls(Generated(generator, given, signature, name or "from_generator"))

    @classmethod
    def range(
        cls,
        *args: int,
        output_type: npt.DTypeLike = np.int64,
        name: str | None = None,
    ) -> Self:
        """Make the dataset of numbers at equal distances.

        Parameters
        ----------
        *args : int
            As for Python's `range`: stop; or start, stop; or start, stop, step.
        output_type : dtype, default np.int64
            Of the numbers; integers that it can't hold wrap around.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The numbers.

        Raises
        ------
        TypeError
            If an argument is no integer, or `output_type` not of numbers.
        ValueError
            If there are none or more than three, the step is 0, one is beyond int64, or
            the numbers are too many to be counted by one.

        Examples
        --------
        >>> import memcfg as mc
        >>> list(mc.data.Dataset.range(5, 0, -2, output_type="int32"))
        [np.int32(5), np.int32(3), np.int32(1)]
        """
        numbers = _range(args)
        return cls(Slices(range_rows(numbers, output_type), name or "range"))

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None, name: str | None = None) -> Self:
        """Join datasets side by side; the shortest one ends it.

        Parameters
        ----------
        *args : Dataset or nest of Dataset
            Several datasets, or one nest of them.
        datasets : nest of Dataset, optional
            The older way to hand over the nest.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Elements are tuples, or of the form of the nest. Its options are those of
            the datasets; where they differ, the last one's count.

        Raises
        ------
        TypeError
            If there is no dataset, or something else in the nest.

        Examples
        --------
        >>> import memcfg as mc
        >>> three = mc.data.Dataset.range(3)
        >>> [(int(a), int(b)) for a, b in mc.data.Dataset.zip(three, three.skip(1))]
        [(0, 1), (1, 2)]
        """
        nest = _one_nest(args, datasets)
        options = Options()
        for item in flatten(nest):
            if not isinstance(item, DatasetCore):
                raise TypeError(
                    "zip takes datasets, and tuples and dicts of them, not "
                    f"{type(item).__name__}"
                    + (": zip(*datasets)" if isinstance(item, list) else "")
                )
            options = options.merge(item._options)
        nodes = map_structure(lambda item: item._node, nest)
        return cls(Zip(nodes, name or "zip"), options)


def _arguments(args: Any) -> tuple[Any, ...]:
    if not isinstance(args, tuple | list):
        raise TypeError(f"args is a tuple of arguments, not {type(args).__name__}")
    return tuple(args)


def _range(args: tuple[Any, ...]) -> range:
    if not 1 <= len(args) <= 3:
        raise ValueError(f"a range takes one to three integers, got {len(args)}")
    numbers = [integer(arg, "an argument of a range") for arg in args]
    if len(numbers) == 3 and numbers[2] == 0:
        raise ValueError("the step of a range is not 0")
    found = range(*numbers)
    if found and (found[-1] - found[0]) // found.step >= _MOST:
        raise ValueError(f"a range has fewer than 2**63 numbers, got {args!r}")
    return found


def _one_nest(args: tuple[Any, ...], datasets: Any) -> Any:
    if bool(args) == (datasets is not None):
        raise TypeError("zip takes datasets, or one nest of them, and not both")
    nest = datasets if not args else args[0] if len(args) == 1 else args
    if not flatten(nest):
        raise TypeError("zip takes at least one dataset")
    return nest
