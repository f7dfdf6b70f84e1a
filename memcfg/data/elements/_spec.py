"""Specs of elements: shapes and dtypes of a nest's leaves."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.data.elements._structure import flatten, map_structure, same_structure

if TYPE_CHECKING:
    from collections.abc import Iterable

Shape = tuple[int | None, ...]
_TEXT = "SU"


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """Shape and dtype of an array.

    Parameters
    ----------
    shape : iterable of int or None, or int, or None
        The sizes of the axes; None is an unknown size. A single int is a shape of one
        axis. If the shape is None, the number of axes is unknown.
    dtype : dtype, default np.float32
        Anything that `numpy.dtype` accepts. Text without a length, such as ``str``, is
        text of any length.
    name : str, optional
        Only compared: two specs with different names are not equal.

    Raises
    ------
    TypeError
        If `shape` is not a shape, or elements cannot have the dtype.
    ValueError
        If a size is negative.

    Examples
    --------
    >>> import memcfg as mc
    >>> spec = mc.data.TensorSpec((None, 28), "float32")
    >>> spec
    TensorSpec(shape=(None, 28), dtype=float32, name=None)
    >>> spec.is_compatible_with(mc.data.TensorSpec((3, 28), "float32"))
    True
    """

    shape: Shape | None
    dtype: np.dtype[Any]
    name: str | None

    def __init__(
        self,
        shape: Iterable[int | None] | int | None,
        dtype: npt.DTypeLike = np.float32,
        name: str | None = None,
    ) -> None:
        object.__setattr__(self, "shape", _as_shape(shape))
        object.__setattr__(self, "dtype", _as_dtype(dtype))
        object.__setattr__(self, "name", name)

    @property
    def rank(self) -> int | None:
        """Number of axes; None if not known."""
        return None if self.shape is None else len(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes of an array of this spec; None if not known."""
        if self.shape is None or None in self.shape or not self.dtype.itemsize:
            return None
        return prod(size or 0 for size in self.shape) * self.dtype.itemsize

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Return whether an array can match both specs.

        Parameters
        ----------
        spec_or_value : TensorSpec or numpy.ndarray or numpy.generic
            The other spec, or an array.

        Returns
        -------
        bool
            Whether dtypes are equal and no two known sizes differ.
        """
        other = spec_or_value
        if not isinstance(other, TensorSpec):
            if not hasattr(other, "dtype"):
                return False
            other = _leaf_spec(other)
        if not _same_dtype(self.dtype, other.dtype):
            return False
        return _fits(self.shape, other.shape)

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype}, name={self.name!r})"


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The spec of a leaf that is a dataset, as the elements of `Dataset.window` have.

    Parameters
    ----------
    element_spec : nest of TensorSpec or DatasetSpec
        The specs of the elements of that dataset.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.data.Dataset.range(5).window(2).element_spec
    DatasetSpec(element_spec=TensorSpec(shape=(), dtype=int64, name=None))
    """

    element_spec: Any

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Return whether a dataset can match both specs.

        Parameters
        ----------
        spec_or_value : DatasetSpec or Dataset
            The other spec, or a dataset.

        Returns
        -------
        bool
            Whether the specs of their elements are compatible.
        """
        other = getattr(spec_or_value, "element_spec", None)
        return same_structure(self.element_spec, other) and all(
            mine.is_compatible_with(its)
            for mine, its in zip(
                flatten(self.element_spec), flatten(other), strict=True
            )
        )


def spec_of(element: Any) -> Any:
    """Return the nest of specs of an element."""
    return map_structure(_leaf_spec, element)


def merge(first: Any, second: Any) -> Any:
    """Return the most specific specs that elements of both specs match."""
    if not same_structure(first, second):
        raise TypeError(f"elements differ in structure: {first} and {second}")
    for one, other in zip(flatten(first), flatten(second), strict=True):
        if DatasetSpec in (type(one), type(other)):
            if not one.is_compatible_with(other):
                raise TypeError(f"elements differ: {first} and {second}")
            continue
        if not _same_dtype(one.dtype, other.dtype):
            raise TypeError(
                f"elements differ in dtype: {one.dtype} and {other.dtype}, of "
                f"{first} and {second}"
            )
    return map_structure(_merged, first, second)


def stacked(spec: Any, count: int | None) -> Any:
    """Return the specs of `count` elements stacked along a new first axis."""

    def leaf(one: TensorSpec) -> TensorSpec:
        shape = None if one.shape is None else (count, *one.shape)
        return TensorSpec(shape, one.dtype)

    return map_structure(leaf, spec)


def vague(spec: Any) -> Any:
    """Replace all sizes by None, for specs that are taken from a single element."""

    def leaf(one: Any) -> Any:
        if isinstance(one, DatasetSpec):
            return DatasetSpec(vague(one.element_spec))
        dtype = np.dtype(one.dtype.kind) if one.dtype.kind in _TEXT else one.dtype
        shape = None if one.shape is None else [None] * len(one.shape)
        return TensorSpec(shape, dtype)

    return map_structure(leaf, spec)


def _leaf_spec(leaf: Any) -> Any:
    if hasattr(leaf, "element_spec"):
        return DatasetSpec(leaf.element_spec)
    return TensorSpec(leaf.shape, leaf.dtype)


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, DatasetSpec):
        return DatasetSpec(merge(one.element_spec, other.element_spec))
    dtype = max(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    if one.dtype.kind in _TEXT and 0 in (one.dtype.itemsize, other.dtype.itemsize):
        dtype = np.dtype(one.dtype.kind)  # text of any length
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return TensorSpec(None, dtype)
    sizes = zip(one.shape, other.shape, strict=True)
    return TensorSpec([a if a == b else None for a, b in sizes], dtype)


def _same_dtype(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    if one.kind in _TEXT:
        return one.kind == other.kind
    return one == other


def _fits(one: Shape | None, other: Shape | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(one, other, strict=True)
    )


def _as_shape(shape: Any) -> Shape | None:
    if shape is None:
        return None
    try:
        sizes = (shape,) if hasattr(shape, "__index__") else shape
        return tuple(_as_size(size) for size in sizes)
    except TypeError as error:
        raise TypeError(
            f"a shape must be a sequence of int and None, or None, got {shape!r}"
        ) from error


def _as_size(size: Any) -> int | None:
    if size is None:
        return None
    if isinstance(size, bool):
        raise TypeError("a size must be an int, not a bool")
    result = operator.index(size)
    if result < 0:
        raise ValueError(f"a size must not be negative, got {result}; None is any size")
    return result


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    if dtype is None:
        raise TypeError("a spec needs a dtype, got None")
    result: np.dtype[Any] = np.dtype(dtype)
    if result.hasobject or result.kind == "V":
        raise TypeError(
            f"a dataset holds numbers, text and dates, not arrays of dtype {result}; "
            "use a dict for fields"
        )
    return result.newbyteorder("=")
