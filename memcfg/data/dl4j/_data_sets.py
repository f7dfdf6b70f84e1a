"""DL4J's batches: features, labels, and masks of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

# Imported here because its constants would lie in a workspace if loaded later.
from numpy.ma import MaskedArray

from memcfg import workspaces
from memcfg._checks import count, flag
from memcfg.archives import read_arrays, write_arrays
from memcfg.errors import FormatError
from memcfg.files import write_atomically
from memcfg.units import align_up

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    import numpy.typing as npt

Array = np.ndarray[Any, Any]
Arrays = tuple[Array | None, ...]

_ROLES = ("features", "labels", "features_mask", "labels_mask")
_GROUPS = ("features", "labels", "features_masks", "labels_masks")


class SplitTestAndTrain(NamedTuple):
    """The two parts of a data set.

    Parameters
    ----------
    train : DataSet or MultiDataSet
        The examples to train on.
    test : DataSet or MultiDataSet
        The rest.
    """

    train: Any
    test: Any


class Examples(ABC):
    """Base class of `DataSet` and `MultiDataSet`: arrays with equally long first axes.

    Methods that select consecutive examples return views, others copies.
    """

    _arrays: Arrays  # the first are features

    def _with(self, arrays: Sequence[Array | None]) -> Self:
        """Return a data set of the same form with other arrays."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), _arrays=tuple(arrays))
        return made

    @abstractmethod
    def _names(self) -> list[str]:
        """Name each array, for messages and files."""

    @classmethod
    @abstractmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        """Make it of named arrays; KeyError, TypeError or ValueError if invalid."""

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(cast("Array", self._arrays[0]))

    def batch_by(self, size: int) -> list[Self]:
        """Split into batches.

        Parameters
        ----------
        size : int
            Number of examples of a batch; the last may have fewer.

        Returns
        -------
        list of DataSet or MultiDataSet
            Views, in order.

        Raises
        ------
        TypeError
            If `size` is not an integer.
        ValueError
            If it is not positive.
        """
        return self._cut(range(0, self.num_examples, count(size, "size")))

    def as_list(self) -> list[Self]:
        """Split into single examples.

        Returns
        -------
        list of DataSet or MultiDataSet
            Views of one example each, with a first axis of length 1.
        """
        return self.batch_by(1)

    def split_test_and_train(
        self, train: float, seed: int | None = None
    ) -> SplitTestAndTrain:
        """Split into examples to train on and to test on.

        Parameters
        ----------
        train : int or float
            The number of examples to train on, or their fraction, between 0 and 1.
        seed : int, optional
            Seed of a shuffle before the split. None: no shuffle.

        Returns
        -------
        SplitTestAndTrain
            Two views; with a seed, views of one copy.

        Raises
        ------
        TypeError
            If `train` is not a number, or `seed` is not a valid seed of NumPy.
        ValueError
            If a part would be empty.
        """
        number = _number_of(train, self.num_examples)
        if not 0 < number < self.num_examples:
            raise ValueError(
                f"train={train!r} of {self.num_examples} examples leaves a part empty"
            )
        source = self if seed is None else self.shuffle(seed)
        return SplitTestAndTrain(*source._cut([0, number]))

    def sample(
        self, size: int, seed: int | None = None, with_replacement: bool = False
    ) -> Self:
        """Draw examples at random.

        Parameters
        ----------
        size : int
            Number of examples.
        seed : int, optional
            Seed of the random choice. None: a different one each time.
        with_replacement : bool, default False
            Whether an example may be drawn twice.

        Returns
        -------
        DataSet or MultiDataSet
            A copy.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If `size` is not positive, or, without replacement, exceeds the number of
            examples.
        """
        size = count(size, "size")
        replace = flag(with_replacement, "with_replacement")
        generator = np.random.default_rng(seed)
        return self._rows(generator.choice(self.num_examples, size, replace=replace))

    def shuffle(self, seed: int | None = None) -> Self:
        """Return the examples in random order.

        Parameters
        ----------
        seed : int, optional
            Seed of the order. None: a different order each time.

        Returns
        -------
        DataSet or MultiDataSet
            A copy; this data set is unchanged.

        Raises
        ------
        TypeError, ValueError
            If `seed` is not a valid seed of NumPy.
        """
        return self._rows(np.random.default_rng(seed).permutation(self.num_examples))

    def _rows(self, rows: npt.NDArray[np.intp]) -> Self:
        return self._with([None if a is None else a[rows] for a in self._arrays])

    def _cut(self, starts: Sequence[int]) -> list[Self]:
        return [
            self._with([None if a is None else a[begin:end] for a in self._arrays])
            for begin, end in pairwise([*starts, self.num_examples])
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of all arrays."""
        return sum(array.nbytes for array in self._present())

    @property
    def memory_footprint(self) -> int:
        """Bytes that copies of all arrays take in a workspace, with alignment."""
        return sum(align_up(max(array.nbytes, 1)) for array in self._present())

    def detach(self) -> Self:
        """Copy arrays out of workspaces.

        Returns
        -------
        DataSet or MultiDataSet
            A data set with copies of the attached arrays; itself if there are none.

        Raises
        ------
        WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
            As `memcfg.detach` does.
        """
        return self._moved(workspaces.detach(self._arrays))

    def migrate(self, detach: bool = False) -> Self:
        """Copy arrays to the current workspace.

        Parameters
        ----------
        detach : bool, default False
            If no workspace is current: whether to copy them out of workspaces.

        Returns
        -------
        DataSet or MultiDataSet
            A data set with copies of the arrays that were elsewhere; itself if there
            are none.

        Raises
        ------
        TypeError, WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError,
        MemoryError
            As `memcfg.workspaces.migrate` does.
        """
        return self._moved(workspaces.migrate(self._arrays, detach))

    def copy(self) -> Self:
        """Copy all arrays, into the current workspace if there is one.

        Returns
        -------
        DataSet or MultiDataSet
            A data set that shares no memory with this one.
        """
        return self._with([None if a is None else a.copy("K") for a in self._arrays])

    @classmethod
    def merge(cls, data_sets: Iterable[Self]) -> Self:
        """Concatenate data sets.

        Parameters
        ----------
        data_sets : iterable of DataSet or MultiDataSet
            At least one, all of the same form. If only some have a mask, a mask of ones
            is used for the others.

        Returns
        -------
        DataSet or MultiDataSet
            A copy.

        Raises
        ------
        TypeError
            If a data set is of another class.
        ValueError
            If there is none; if shapes, dtypes or the numbers of arrays differ; or if
            only some have labels.
        """
        sets = list(data_sets)
        if not sets:
            raise ValueError("there is nothing to merge")
        for each in sets:
            if not isinstance(each, cls):
                raise TypeError(f"only a {cls.__name__} is merged here, not {each!r}")
            if each._names() != sets[0]._names():
                raise ValueError(f"{each!r} has other arrays than {sets[0]!r}")
        lengths = [each.num_examples for each in sets]
        columns = zip(*(each._arrays for each in sets), strict=True)
        named = zip(sets[0]._names(), columns, strict=True)
        return sets[0]._with([_joined(name, arrays, lengths) for name, arrays in named])

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the data set to an ``.npz`` file, without pickles.

        Parameters
        ----------
        path : str or path-like
            The file.
        overwrite : bool, default False
            Whether to replace an existing file.

        Raises
        ------
        FileExistsError
            If the file exists and `overwrite` is False.
        OSError
            If it cannot be written; an existing file is then unchanged.
        """
        named = zip(self._names(), self._arrays, strict=True)
        arrays = {name: array for name, array in named if array is not None}
        overwrite = flag(overwrite, "overwrite")
        write_atomically(path, write_arrays(arrays), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a data set that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        DataSet or MultiDataSet
            The data set, in the current workspace if there is one.

        Raises
        ------
        OSError
            If the file cannot be read.
        FormatError
            If it is damaged, or not a saved data set of this class.
        """
        arrays = read_arrays(path, "saved data set")
        try:
            return cls._restored(arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path} is not a saved {cls.__name__}; it has {sorted(arrays)}: "
                f"{error}"
            ) from None

    def _moved(self, arrays: Arrays) -> Self:
        if all(new is old for new, old in zip(arrays, self._arrays, strict=True)):
            return self
        return self._with(arrays)

    def _present(self) -> list[Array]:
        """List the arrays, each once: labels may be the features themselves."""
        each = {id(array): array for array in self._arrays if array is not None}
        return list(each.values())

    def __len__(self) -> int:
        return self.num_examples

    def __repr__(self) -> str:
        parts = [
            f"{name}={array.dtype}{array.shape}"
            for name, array in zip(self._names(), self._arrays, strict=True)
            if array is not None
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


class DataSet(Examples):
    """Examples with their labels.

    The arrays may be written to, but not replaced: methods return a new data set.

    Parameters
    ----------
    features : array_like
        Inputs of a model, shape ``(n, ...)``. An array is not copied.
    labels : array_like, optional
        Targets, shape ``(n, ...)``.
    features_mask : array_like, optional
        Mask of the time steps of `features`, shape ``(n, ...)``.
    labels_mask : array_like, optional
        Mask of the time steps of `labels`, shape ``(n, ...)``.

    Raises
    ------
    TypeError
        If an array is a masked array or of objects.
    ValueError
        If an array is a scalar or ragged, first axes differ in length, or there is a
        `labels_mask` without `labels`.

    Notes
    -----
    DL4J's `detach`, `migrate` and `shuffle` work in place. Here they return a new data
    set, so that a data set is never changed by other code that uses it.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.data.DataSet(np.ones((10, 3)), np.arange(10))
    >>> train, test = data.split_test_and_train(0.7)
    >>> train.num_examples, test.labels
    (7, array([7, 8, 9]))
    """

    def __init__(
        self,
        features: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        features_mask: npt.ArrayLike | None = None,
        labels_mask: npt.ArrayLike | None = None,
    ) -> None:
        first = _checked(features, "features")
        given = (labels, features_mask, labels_mask)
        if labels is None and labels_mask is not None:
            raise ValueError("labels_mask needs labels")
        self._arrays = (
            first,
            *(
                None if value is None else _checked(value, name, len(first))
                for name, value in zip(_ROLES[1:], given, strict=True)
            ),
        )

    @property
    def features(self) -> Array:
        """Inputs of a model, shape ``(n, ...)``."""
        return cast("Array", self._arrays[0])

    @property
    def labels(self) -> Array | None:
        """Targets, shape ``(n, ...)``."""
        return self._arrays[1]

    @property
    def features_mask(self) -> Array | None:
        """Mask of the time steps of the features, shape ``(n, ...)``."""
        return self._arrays[2]

    @property
    def labels_mask(self) -> Array | None:
        """Mask of the time steps of the labels, shape ``(n, ...)``."""
        return self._arrays[3]

    def _names(self) -> list[str]:
        return list(_ROLES)

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        if not set(arrays) <= set(_ROLES):
            raise ValueError("it has unknown arrays")
        return cls(**arrays)


class MultiDataSet(Examples):
    """Examples with several arrays of features, of labels, or of both.

    Parameters
    ----------
    features : array_like, or list or tuple of them
        Inputs of a model, each of shape ``(n, ...)``; at least one. A single array is a
        list of one. Arrays are not copied.
    labels : array_like, or list or tuple of them, optional
        Targets, each of shape ``(n, ...)``.
    features_masks : list or tuple of (array_like or None), optional
        Mask of the time steps of each array of features.
    labels_masks : list or tuple of (array_like or None), optional
        Mask of the time steps of each array of labels.

    Raises
    ------
    TypeError
        If an array is a masked array or of objects, or masks are not a list or tuple.
    ValueError
        If an array is a scalar or ragged, first axes differ in length, there are no
        features, or the number of masks differs from the number of arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.data.MultiDataSet([np.ones((4, 3)), np.zeros((4, 2))], np.arange(4))
    >>> data.num_examples, len(data.features), data.features_masks
    (4, 2, (None, None))
    """

    def __init__(
        self,
        features: Any,
        labels: Any = (),
        features_masks: Sequence[npt.ArrayLike | None] | None = None,
        labels_masks: Sequence[npt.ArrayLike | None] | None = None,
    ) -> None:
        groups = [_listed(features), _listed(() if labels is None else labels)]
        if not groups[0]:
            raise ValueError("a data set needs features")
        given = (features_masks, labels_masks)
        for masks, of, name in zip(given, tuple(groups), _GROUPS[2:], strict=True):
            groups.append(_masks(masks, len(of), name))
        self._sizes = tuple(map(len, groups))
        examples = len(_checked(groups[0][0], "features[0]"))
        self._arrays = tuple(
            None if value is None else _checked(value, name, examples)
            for name, value in zip(self._names(), chain(*groups), strict=True)
        )

    @property
    def features(self) -> tuple[Array, ...]:
        """Inputs of a model, each of shape ``(n, ...)``."""
        return cast("tuple[Array, ...]", self._group(0))

    @property
    def labels(self) -> tuple[Array, ...]:
        """Targets, each of shape ``(n, ...)``."""
        return cast("tuple[Array, ...]", self._group(1))

    @property
    def features_masks(self) -> Arrays:
        """Mask of the time steps of each array of features; None: no mask."""
        return self._group(2)

    @property
    def labels_masks(self) -> Arrays:
        """Mask of the time steps of each array of labels; None: no mask."""
        return self._group(3)

    def _group(self, number: int) -> Arrays:
        start = sum(self._sizes[:number])
        return self._arrays[start : start + self._sizes[number]]

    def _names(self) -> list[str]:
        return [
            f"{group}[{index}]"
            for group, size in zip(_GROUPS, self._sizes, strict=True)
            for index in range(size)
        ]

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        groups: dict[str, dict[int, Array]] = {name: {} for name in _GROUPS}
        for name, array in arrays.items():
            group, _, index = name.removesuffix("]").partition("[")
            groups[group][int(index)] = array
        features, labels = (
            [groups[name][index] for index in range(len(groups[name]))]
            for name in _GROUPS[:2]
        )
        masks = [
            [groups[name].pop(index, None) for index in range(len(of))]
            for name, of in zip(_GROUPS[2:], (features, labels), strict=True)
        ]
        if groups[_GROUPS[2]] or groups[_GROUPS[3]]:
            raise ValueError("it has masks without arrays")
        return cls(features, labels, *masks)


def migrated(batch: Any) -> Any:
    """Return a batch with its arrays copied to the current workspace."""
    return _moved(batch, workspaces.migrate)


def shielded(batch: Any) -> Any:
    """Copy the attached arrays of a batch to the current workspace, or out of all."""
    current = workspaces.current_workspace()
    if current is None:
        return _moved(batch, workspaces.detach)
    return _moved(batch, lambda value: workspaces.leverage_to(value, current))


def _moved(batch: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Examples):
        return batch._moved(move(batch._arrays))
    if not isinstance(batch, np.ndarray | np.generic | tuple | list | dict):
        raise TypeError(
            "a batch is a data set, an array, or a tuple, list or dict of them, not "
            f"{batch!r:.80}: its arrays cannot be found"
        )
    return _through(move(batch), move)


def _through(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Move the data sets inside a container, whose own arrays are already moved."""
    if isinstance(batch, Examples):
        return batch._moved(move(batch._arrays))
    if isinstance(batch, dict):
        for key, each in batch.items():
            batch[key] = _through(each, move)
    elif isinstance(batch, list):
        batch[:] = [_through(each, move) for each in batch]
    elif isinstance(batch, tuple):
        make = getattr(type(batch), "_make", type(batch))
        return make(_through(each, move) for each in batch)
    return batch


def _number_of(train: Any, examples: int) -> int:
    if isinstance(train, float | np.floating):
        return int(round(float(train) * examples, 6))  # 0.29 of 100 is 29
    return count(train, "train", 0)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _masks(value: Any, wanted: int, name: str) -> list[Any]:
    if value is None:
        return [None] * wanted
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"{name} must be a list with a mask for each array, not {value!r}"
        )
    if len(value) != wanted:
        raise ValueError(f"{name} has {len(value)} masks for {wanted} arrays")
    return list(value)


def _checked(value: Any, what: str, examples: int | None = None) -> Array:
    """Return the value as an array of examples; TypeError, ValueError if it is not."""
    if isinstance(value, MaskedArray):
        raise TypeError(
            f"{what} is a masked array: fill it, and pass its mask separately"
        )
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"{what} must not be an array of objects: {value!r:.80}")
    if array.ndim == 0:
        raise ValueError(f"{what} needs a first axis that counts examples")
    if examples is not None and len(array) != examples:
        raise ValueError(
            f"{what} has {len(array)} examples, but the features have {examples}"
        )
    return array


def _joined(
    name: str, arrays: Sequence[Array | None], lengths: Sequence[int]
) -> Array | None:
    """Concatenate one array of each data set; a missing mask is one of ones."""
    like = next((array for array in arrays if array is not None), None)
    if like is None:
        return None
    present = [
        _ones(name, like, length) if array is None else array
        for array, length in zip(arrays, lengths, strict=True)
    ]
    for array in present:
        if array.shape[1:] != like.shape[1:] or array.dtype != like.dtype:
            raise ValueError(
                f"{name} of {array.dtype}{array.shape} does not merge with "
                f"{like.dtype}{like.shape}"
            )
    return np.concatenate(present)


def _ones(name: str, like: Array, length: int) -> Array:
    """Return a mask of ones, for a data set without one."""
    if "mask" not in name:
        raise ValueError(f"some data sets have {name}, and some have none")
    return np.ones((length, *like.shape[1:]), like.dtype)
