"""Arrays of different shapes made alike: the arithmetic of `Dataset.padded_batch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data.elements._batch_arrays import TEXT
from memcfg.data.elements._structure import flatten, is_nest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Padding", "as_padded_shape", "check_paddings", "paddings_of", "up_to"]

# What a value of a class in Python can be; a number must not change its value.
_KINDS = {bool: "b", int: "iufc", float: "fc", complex: "c", str: "SU", bytes: "S"}


@dataclass(frozen=True, slots=True)
class Padding:
    """How a component of the elements is padded."""

    component: int  # for messages
    shape: tuple[int | None, ...]  # None: the longest of the batch
    value: Any  # what fills the rest, of the component's dtype

    def target(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Find the shape that all arrays of a batch are given."""
        for number, leaf in enumerate(leaves):
            if leaf.ndim != len(self.shape):
                raise ValueError(
                    f"component {self.component} of element {number} has shape "
                    f"{list(leaf.shape)}, which cannot be padded to {self}"
                )
        shapes = [leaf.shape for leaf in leaves]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        for axis, (size, needed) in enumerate(zip(self.shape, longest, strict=True)):
            if size is not None and size < needed:
                raise ValueError(
                    f"component {self.component} is to be padded to {self}, and an "
                    f"element has {needed} along axis {axis}"
                )
        pairs = zip(self.shape, longest, strict=True)
        return tuple(needed if size is None else size for size, needed in pairs)

    def dtype(self, leaves: Sequence[Any]) -> np.dtype[Any]:
        """Find the dtype of a batch's array."""
        mine = self.value.dtype
        for number, leaf in enumerate(leaves):
            if leaf.dtype.kind != mine.kind or (
                mine.kind not in TEXT and leaf.dtype != mine
            ):
                raise TypeError(
                    f"cannot batch arrays of different dtypes in component "
                    f"{self.component}: {mine}, and element {number} is {leaf.dtype}"
                )
        return max([mine, *(leaf.dtype for leaf in leaves)], key=lambda d: d.itemsize)

    def fill(self, array: npt.NDArray[Any], leaves: Sequence[Any]) -> None:
        """Write arrays into the rows of a batch, and the value around them."""
        for row, leaf in enumerate(leaves):
            if leaf.shape != array.shape[1:]:
                array[row] = self.value
            array[row, ...][tuple(map(slice, leaf.shape))] = leaf

    def __str__(self) -> str:
        return str(list(self.shape))


def paddings_of(shapes: Any, values: Any, element: Any) -> list[Padding]:
    """Read what the user said for elements like one."""
    leaves = flatten(element)
    sizes = [
        (None,) * leaf.ndim if size is None else size
        for size, leaf in zip(_sizes(shapes, element), leaves, strict=True)
    ]
    scalars = _scalars(values, element)
    return [
        _padding(number, *parts)
        for number, parts in enumerate(zip(sizes, scalars, leaves, strict=True))
    ]


def check_paddings(shapes: Any, values: Any, spec: Any) -> None:
    """Refuse what cannot be honoured for elements of which the spec is known."""
    leaves = flatten(spec)
    for leaf, value in zip(leaves, _scalars(values, spec), strict=True):
        _scalar(value, leaf.dtype)
    for number, (leaf, shape) in enumerate(
        zip(leaves, _sizes(shapes, spec), strict=True)
    ):
        if shape is None and leaf.shape is None:
            raise ValueError(
                f"padded_shapes is needed: nobody knows how many axes component "
                f"{number} has"
            )
        if shape is not None and not _holds(shape, leaf.shape):
            raise ValueError(
                f"the padded shape {list(shape)} is not compatible with shape "
                f"{list(leaf.shape)} of component {number}"
            )


def _sizes(shapes: Any, element: Any) -> list[tuple[int | None, ...] | None]:
    """List the padded shapes of components; None where the user said none."""
    if shapes is None:
        return [None] * len(flatten(element))
    return [as_padded_shape(one) for one in up_to(element, shapes, "padded_shapes")]


def _scalars(values: Any, element: Any) -> list[Any]:
    """List the padding values of components; None where the user said none."""
    if values is None or (is_nest(element) and not is_nest(values)):
        return [values] * len(flatten(element))
    return up_to(element, values, "padding_values")


def _holds(
    padded: tuple[int | None, ...], shape: tuple[int | None, ...] | None
) -> bool:
    """Tell whether a padded shape is at least as large as a shape."""
    if shape is None:
        return True
    return len(padded) == len(shape) and all(
        size is None or needed is None or size >= needed
        for size, needed in zip(padded, shape, strict=True)
    )


def up_to(like: Any, nest: Any, what: str) -> list[Any]:
    """List the parts of a nest that stand where another has its leaves."""
    if not is_nest(like):
        return [nest]
    kind = Mapping if isinstance(like, Mapping) else tuple
    if not isinstance(nest, kind):
        raise TypeError(
            f"{what} is to be a {'dict' if kind is Mapping else 'tuple'} as the "
            f"elements are, not {nest!r}"
        )
    if isinstance(like, Mapping):
        if set(like) != set(nest):
            raise ValueError(f"{what} has keys {list(nest)}, elements {list(like)}")
        pairs = [(like[key], nest[key]) for key in sorted(like)]
    else:
        if len(like) != len(nest):
            raise ValueError(f"{what} has {len(nest)} parts, elements {len(like)}")
        pairs = list(zip(like, nest, strict=True))
    return [leaf for one, other in pairs for leaf in up_to(one, other, what)]


def as_padded_shape(shape: Any) -> tuple[int | None, ...]:
    """Read a padded shape."""
    sizes = shape if isinstance(shape, Iterable) else [shape]
    try:
        found = [-1 if size is None else index(size) for size in sizes]
    except TypeError as error:
        raise TypeError(
            f"a padded shape is a sequence of int and None, not {shape!r}"
        ) from error
    if min(found, default=0) < -1:
        raise ValueError(f"the sizes of a padded shape are -1 or more, not {shape!r}")
    return tuple(None if size == -1 else size for size in found)


def _padding(
    number: int, shape: tuple[int | None, ...], value: Any, leaf: Any
) -> Padding:
    padding = Padding(number, shape, _scalar(value, leaf.dtype))
    if len(shape) != leaf.ndim:
        raise ValueError(
            f"the padded shape {padding} is not compatible with shape "
            f"{list(leaf.shape)} of component {number}"
        )
    return padding


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Make a value one of a component's dtype."""
    if value is None:
        return np.zeros((), dtype)[()]
    if np.ndim(value):
        raise ValueError(f"padding_values are scalars, not {value!r}")
    if isinstance(value, np.generic | np.ndarray):
        found: Any = np.asarray(value)[()]
        fits = found.dtype.kind == dtype.kind and (
            dtype.kind in TEXT or found.dtype == dtype
        )
    else:
        fits = dtype.kind in _KINDS.get(type(value), "")
        found = _of_python(value, dtype) if fits else None
    if not fits:
        raise TypeError(
            f"padding value {value!r} is not of the component's dtype, {dtype}"
        )
    return found


def _of_python(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in TEXT:
        as_bytes = dtype.kind == "S" and isinstance(value, str)
        return np.asarray(value.encode() if as_bytes else value)[()]
    try:
        found = dtype.type(value)
    except OverflowError:
        found = None
    if found is None or (isinstance(value, int) and found != value):
        raise ValueError(f"padding value {value!r} is out of range for {dtype}")
    return found
