"""Arrays made in a given workspace, whatever is current.

Owns how many requests each makes: one, of the array itself. Values that Python's
numbers are turned into on the way lie outside of all workspaces.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core.numpy_memory import Scope, scope_out
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from memcfg.memory import Resource

__all__ = ["ArrayMaker"]

Shape = int | tuple[int, ...]


class ArrayMaker(Scope):
    """A scope whose methods make arrays in its memory. The base of `Workspace`."""

    @property
    def resource(self) -> Resource:
        """Where its pages, and what finds no room in them, come from."""
        upstream = self.memory.upstream
        assert upstream is not None, "a workspace stands on a resource"
        return upstream

    def alloc(self, nbytes: int) -> memoryview:
        """Take bytes, for what is not an array.

        Parameters
        ----------
        nbytes : int
            How many, at least 1.

        Returns
        -------
        memoryview
            Writable, not initialised, and aligned to 64 bytes. It keeps its memory as
            an array does.

        Raises
        ------
        TypeError
            If `nbytes` is no int.
        ValueError
            If it is less than 1.
        WorkspaceFullError
            If there is no room, and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no room for it.
        """
        length = index(nbytes)
        if length < 1:
            raise ValueError(f"a request is for at least one byte, not {length}")
        return self.empty(length, np.uint8).data

    def empty(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array that is not initialised, here, whatever is current.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            In this workspace; while that is closed or disabled, a block of its own of
            `resource` and attached to nothing.

        Raises
        ------
        WorkspaceFullError
            If there is no room, and the spill policy is "fail".
        ResourceExhaustedError
            If `resource` has no room for it.
        """
        with self._here():
            return np.empty(shape, dtype)

    def zeros(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array of zeros, as `empty` does.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            Where `empty` makes it.

        Raises
        ------
        WorkspaceFullError, ResourceExhaustedError
            What `empty` raises.
        """
        with self._here():
            return np.zeros(shape, dtype)

    def ones(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array of ones, as `empty` does.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            Where `empty` makes it. Nothing else is taken there.

        Raises
        ------
        WorkspaceFullError, ResourceExhaustedError
            What `empty` raises.
        """
        return self.full(shape, 1, dtype)

    def full(
        self, shape: Shape, value: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Make an array of one value, as `empty` does.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        value : scalar or array_like
            What it is filled with; it is broadcast.
        dtype : data-type or None, default None
            Its type; None is that of the value.

        Returns
        -------
        numpy.ndarray
            Where `empty` makes it. Nothing else is taken there.

        Raises
        ------
        ValueError
            If the value does not fit the shape.
        WorkspaceFullError, ResourceExhaustedError
            What `empty` raises.
        """
        with scope_out():
            filling = np.asarray(value, dtype)
        made = self.empty(shape, filling.dtype)
        return _filled(made, filling)

    def array(self, values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Make an array with given values, as `empty` does.

        Parameters
        ----------
        values : array_like
            Numbers, nested sequences or an array, which is copied.
        dtype : data-type or None, default None
            Its type; None is that of the values.

        Returns
        -------
        numpy.ndarray
            Where `empty` makes it. Nothing else is taken there.

        Raises
        ------
        WorkspaceFullError, ResourceExhaustedError
            What `empty` raises.
        """
        with scope_out():
            known = isinstance(values, np.ndarray)
            source = np.asarray(values, None if known else dtype)
        return _filled(self.empty_like(source, dtype), source)

    def empty_like(
        self, prototype: ArrayLike, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Make an array of the shape, order and type of another one, as `empty` does.

        Parameters
        ----------
        prototype : array_like
            The other one.
        dtype : data-type or None, default None
            Its type; None is that of the prototype.

        Returns
        -------
        numpy.ndarray
            Where `empty` makes it, not initialised.

        Raises
        ------
        WorkspaceFullError, ResourceExhaustedError
            What `empty` raises.
        """
        with scope_out():
            source = np.asarray(prototype)
        with self._here():
            return np.empty_like(source, dtype, subok=False)

    def _here(self) -> AbstractContextManager[object]:
        """Let NumPy make its arrays here."""
        return self.inside() if self.is_open else numpy_allocator(self.resource)


def _filled(made: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    with scope_out():
        np.copyto(made, values, casting="unsafe")
    return made
