"""What every dataset can do, whatever its steps: be iterated, counted, described."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from memcfg.data._options import Options
from memcfg.data.elements._convert import as_element
from memcfg.data.elements._spec import TensorSpec, spec_of
from memcfg.data.elements._structure import flatten, same_structure
from memcfg.data.elements._user_functions import as_result
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DatasetCore", "integer"]


class DatasetCore:
    """A pipeline, as a value.

    Parameters
    ----------
    node : Node
        Its last step.
    options : Options, optional
        Of the whole.

    Raises
    ------
    TypeError
        If that is no step, but data.
    """

    def __init__(self, node: Node, options: Options | None = None) -> None:
        if not isinstance(node, Node):
            raise TypeError(
                "a Dataset is made by from_tensor_slices, from_generator or one of "
                f"their like, not of {type(node).__name__}"
            )
        self._node = node
        self._options = Options() if options is None else options

    def _then(self, node: Node) -> Self:
        """Make the dataset with one step more."""
        return type(self)(node, self._options)

    @property
    def element_spec(self) -> Any:
        """What the elements are: a nest of `TensorSpec`.

        Of what users' functions return, dtypes and numbers of axes are found by running
        the pipeline for one element, and no size is told.
        """
        return self._node.element_spec

    def cardinality(self) -> np.int64:
        """Count the elements of a pass, without making one.

        Returns
        -------
        numpy.int64
            `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY` where it is no number.

        Examples
        --------
        >>> import memcfg as mc
        >>> int(mc.data.Dataset.range(10).batch(4).cardinality())
        3
        """
        return np.int64(self._node.cardinality)

    def options(self) -> Options:
        """Return what was asked of the whole pipeline.

        Returns
        -------
        Options
            A copy; changing it changes nothing.
        """
        return Options().merge(self._options)

    def with_options(self, options: Options, name: str | None = None) -> Self:
        """Ask something of the whole pipeline.

        Parameters
        ----------
        options : Options
            What it sets counts; what it leaves None stays as it is. It is copied.
        name : str, optional
            Of no effect.

        Returns
        -------
        Dataset
            The same elements.

        Raises
        ------
        TypeError
            If these are no options.
        """
        del name
        if not isinstance(options, Options):
            raise TypeError(
                f"options is memcfg.data.Options, not {type(options).__name__}"
            )
        return type(self)(self._node, self._options.merge(options))

    def as_numpy_iterator(self) -> DatasetIterator:
        """Begin a pass; elements are NumPy arrays and scalars in any case.

        Returns
        -------
        DatasetIterator
            The same as `iter` gives.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).as_numpy_iterator()]
        [0, 1, 2]
        """
        return DatasetIterator(self._node, self._options)

    def reduce(
        self,
        initial_state: Any,
        reduce_func: Callable[[Any, Any], Any],
        name: str | None = None,
    ) -> Any:
        """Fold the elements into one.

        Parameters
        ----------
        initial_state : nest
            The state before the first element.
        reduce_func : callable
            Takes the state and an element, which is not unpacked; returns the next
            state. As for `map`, a list that it returns is a tuple.
        name : str, optional
            Of no effect.

        Returns
        -------
        nest of numpy.ndarray and numpy.generic
            The state after the last element.

        Raises
        ------
        TypeError
            If a state differs from the first in structure or dtype.
        BaseException
            What a function of the pipeline raised.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> int(mc.data.Dataset.range(5).reduce(np.int64(0), lambda sum, x: sum + x))
        10
        """
        del name
        state = as_element(initial_state)
        first = spec_of(state)
        with self.as_numpy_iterator() as elements:
            for element in elements:
                state = as_result(reduce_func(state, element))
                _check_state(state, first)
        return state

    def apply(self, transformation_func: Callable[[Self], Self]) -> Self:
        """Call a function on this dataset; it reads well in a chain.

        Parameters
        ----------
        transformation_func : callable
            Takes a dataset, returns one.

        Returns
        -------
        Dataset
            What it returned.

        Raises
        ------
        TypeError
            If that is no dataset.
        """
        found = transformation_func(self)
        if not isinstance(found, DatasetCore):
            raise TypeError(
                "transformation_func is to return a memcfg.data.Dataset, and returned "
                f"{type(found).__name__}"
            )
        return found

    def __iter__(self) -> DatasetIterator:
        """Begin a pass; it ends with the iterator, or when that is closed."""
        return self.as_numpy_iterator()

    def __len__(self) -> int:
        """Count the elements of a pass.

        Raises
        ------
        TypeError
            If it has no end, or their number is not known before.
        """
        found = self._node.cardinality
        if found == INFINITE:
            raise TypeError("the dataset is infinite")
        if found == UNKNOWN:
            raise TypeError("the length of the dataset is unknown")
        return found

    def __bool__(self) -> bool:
        """Return True: a dataset is there, whether it has elements or not."""
        return True

    def __repr__(self) -> str:
        steps, node = [self._node.name], self._node
        while node.inputs:
            node = node.inputs[0]
            steps.append(node.name)
        return f"<Dataset {' > '.join(reversed(steps))}>"


def _check_state(state: Any, first: Any) -> None:
    if not same_structure(state, first):
        raise TypeError(
            f"the state changed its structure from {first!r} to {spec_of(state)!r}"
        )
    for leaf, spec in zip(flatten(state), flatten(first), strict=True):
        if not TensorSpec(None, spec.dtype).is_compatible_with(leaf):
            raise TypeError(
                f"the state changed its dtype from {spec.dtype} to {leaf.dtype}: begin "
                f"with an initial_state of {leaf.dtype}"
            )


def integer(value: Any, what: str) -> int:
    """Read an argument that counts.

    Parameters
    ----------
    value : int
        Any integer, of Python or NumPy.
    what : str
        The argument's name, for the message.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is beyond int64.
    """
    try:
        found = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{what} is an integer, not {value!r}") from error
    if not -(2**63) <= found < 2**63:
        raise ValueError(f"{what} is an int64, got {found}")
    return found
