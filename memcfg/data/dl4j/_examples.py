"""What all data sets have in common beside their rows.

Owns what they take, where they lie, and their files. Refuses to know what an array
stands for.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from memcfg import workspaces
from memcfg.archives import read_arrays, write_arrays
from memcfg.data._checks import flag
from memcfg.data.dl4j._example_arrays import joined
from memcfg.data.dl4j._example_rows import ExampleRows
from memcfg.errors import FormatError
from memcfg.files import write_atomically
from memcfg.units import align_up

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Self

    from memcfg.data.dl4j._example_arrays import Array, Arrays

__all__ = ["Examples"]


class Examples(ExampleRows):
    """The base of `DataSet` and `MultiDataSet`."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Name each array, for messages and files."""

    @classmethod
    @abstractmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        """Make one of arrays by name; KeyError, TypeError, ValueError: it is none."""

    @property
    def nbytes(self) -> int:
        """What the elements of all arrays take, in bytes."""
        return sum(array.nbytes for array in self._present())

    @property
    def memory_footprint(self) -> int:
        """What copies of all arrays take in a workspace, in bytes."""
        return sum(align_up(max(array.nbytes, 1)) for array in self._present())

    def detach(self) -> Self:
        """Take the arrays out of all workspaces.

        Returns
        -------
        DataSet or MultiDataSet
            Of copies of what is attached; itself if nothing is.

        Raises
        ------
        WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
            What `memcfg.detach` raises.
        """
        return self._moved(workspaces.detach(self._arrays))

    def migrate(self, detach: bool = False) -> Self:
        """Take the arrays to the current workspace.

        Parameters
        ----------
        detach : bool, default False
            Whether they are taken out of all workspaces where none is current.

        Returns
        -------
        DataSet or MultiDataSet
            Of copies of what is elsewhere; itself if nothing is.

        Raises
        ------
        TypeError, WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError,
        MemoryError
            What `memcfg.migrate` raises.
        """
        return self._moved(workspaces.migrate(self._arrays, detach))

    def copy(self) -> Self:
        """Copy all arrays to where arrays are made now.

        Returns
        -------
        DataSet or MultiDataSet
            It shares nothing with this one.
        """
        return self._with([None if a is None else a.copy("K") for a in self._arrays])

    @classmethod
    def merge(cls, data_sets: Iterable[Self]) -> Self:
        """Put data sets one behind the other.

        Parameters
        ----------
        data_sets : iterable of DataSet or MultiDataSet
            At least one, all of one form. Where some have a mask, that of the others is
            of ones.

        Returns
        -------
        DataSet or MultiDataSet
            A copy.

        Raises
        ------
        TypeError
            If one is of another class.
        ValueError
            If there is none, or shapes, dtypes or the numbers of arrays differ, or only
            some have labels.
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
        return sets[0]._with([joined(name, arrays, lengths) for name, arrays in named])

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to an ``.npz`` file, which holds no pickles.

        Parameters
        ----------
        path : str or path-like
            The file.
        overwrite : bool, default False
            Whether a file that is there is replaced.

        Raises
        ------
        FileExistsError
            If the file is there and not to be replaced.
        OSError
            If it cannot be written; a file that was there is as it was.
        """
        named = zip(self._names(), self._arrays, strict=True)
        arrays = {name: array for name, array in named if array is not None}
        overwrite = flag(overwrite, "overwrite")
        write_atomically(path, write_arrays(arrays), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        DataSet or MultiDataSet
            Its arrays are made where arrays are made now.

        Raises
        ------
        OSError
            If it cannot be read.
        FormatError
            If it is no saved data set of this class, or damaged.
        """
        arrays = read_arrays(path, "saved data set")
        try:
            return cls._restored(arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path} is no saved {cls.__name__}, it has {sorted(arrays)}: {error}"
            ) from None

    def _moved(self, arrays: Arrays) -> Self:
        if all(new is old for new, old in zip(arrays, self._arrays, strict=True)):
            return self
        return self._with(arrays)

    def _present(self) -> list[Array]:
        """List the arrays, each once: labels may be the features themselves."""
        each = {id(array): array for array in self._arrays if array is not None}
        return list(each.values())

    def __repr__(self) -> str:
        parts = [
            f"{name}={array.dtype}{array.shape}"
            for name, array in zip(self._names(), self._arrays, strict=True)
            if array is not None
        ]
        return f"{type(self).__name__}({', '.join(parts)})"
