"""Checks of arrays of samples, targets and sample weights.

No array is converted here: batches convert rows as they are copied into a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.nn.inputs._array_likes import Frame, as_array, whole
from memcfg.nn.inputs._batches import ClassWeights, Column
from memcfg.nn.layers._layer import Shape, show_shape
from memcfg.workspaces import check_valid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.data.rows._file_rows import FileColumn

__all__ = [
    "Field",
    "Preparation",
    "Table",
    "check_samples",
    "check_steps",
    "check_x",
    "check_y",
    "class_weights",
    "conform_weights",
    "conform_x",
    "target_column",
]

_PART = 1 << 16  # elements examined at once

Array = npt.NDArray[Any]


class Table(NamedTuple):
    """A table whose rows are selected by indices."""

    name: str
    rows: int


class Preparation(NamedTuple):
    """What is done on the host to the data of an input."""

    shape: Shape  # of one sample, before
    steps: Sequence[Callable[[Any], Any]]

    def __call__(self, x: Any) -> Any:
        """Return what the steps make of arrays of samples."""
        x = np.asarray(x)
        if x.ndim != len(self.shape) + 1:
            x = _ranked(x, self.shape)
        for step in self.steps:
            x = step(x)
        return np.asarray(x)


class Field(NamedTuple):
    """The requirements on one array of a batch."""

    name: str  # name of the program's input
    shape: Any  # of one sample; None in that of x is an axis of any length
    dtype: str
    classes: int | None = None  # number of classes of labels
    filler: int | None = None  # of a last axis that is too short; None: it must not be
    table: Table | None = None  # table that the samples index
    prepare: Preparation | None = None  # `shape` and `dtype` are those of its result


def check_x(x: Any, what: str = "x", field: Field | None = None) -> Array:
    """Return samples as an array of the input's rank, if the input is known."""
    if type(x) is not np.ndarray:
        x = as_array(x, what)
    if field is not None and field.prepare is not None:
        x = field.prepare(x).astype(field.dtype, copy=False)
    if x.dtype.kind not in "fiub":
        raise TypeError(f"{what} is an array of numbers, got {x.dtype}" + _coded(x))
    if x.size == 0 and x.ndim:
        raise ValueError(f"{what} is empty: its shape is {x.shape}")
    if isinstance(x, Frame):
        return x  # type: ignore[return-value]  # it has what is asked of samples
    check_valid(x, f"read {what}")
    result: Array = np.asarray(x)
    if field is not None and result.ndim != len(field.shape) + 1:
        result = _ranked(result, field.shape)
    if result.ndim < (2 if field is None or field.shape else 1):
        raise ValueError(
            f"{what} needs an axis of samples and one more at least, got {result.shape}"
        )
    return result


def _coded(array: Any) -> str:
    """Return a hint on encoding words as numbers, or nothing."""
    words = array.dtype.kind in "US"
    hint = (
        ": numpy.unique(words, return_inverse=True)[1] are numbers for words; a model "
        "that takes text starts with Input((1,), dtype='string')"
    )
    return hint if words else ""


def _ranked(x: Array, shape: Shape) -> Array:
    """Add or remove a last axis of length 1, as Keras does.

    None is added to what it would not make samples of, such as one sample alone.
    """
    if shape and x.ndim == len(shape) and shape[-1] == 1:
        longer = x[..., None]
        return longer if _fits(longer.shape[1:], shape) else x
    return x[..., 0] if x.ndim == len(shape) + 2 and x.shape[-1] == 1 else x


def check_samples(arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Refuse arrays with different numbers of samples."""
    for array, name in zip(arrays, names, strict=True):
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the samples and what belongs to them differ in number: {names[0]} "
                f"has {len(arrays[0])} samples, {name} has shape {array.shape}"
            )


def conform_x(x: Array, field: Field, what: str = "x") -> Array:
    """Return samples, or refuse those that an input cannot read."""
    if x.shape[1:] != field.shape and not _fits(x.shape[1:], field.shape):
        hint = f": one sample is a batch as {what}[None]"
        raise ValueError(
            f"{what} has shape {x.shape}, but the model reads {show_shape(field.shape)}"
            + (hint if _fits(x.shape, field.shape) else "")
        )
    if field.table is not None and type(x) is np.ndarray:
        table, rows = field.table
        ends = np.minimum.reduce(x, None), np.maximum.reduce(x, None)
        for end in map(float, ends):  # beyond int32, the conversion raises
            if -(2**31) <= end <= -1 or rows <= end < 2**31:
                raise ValueError(
                    f"{what} has the index {int(end)}, which is out of range: it is a "
                    f"row of {table!r}, which has {rows}, so indices are 0 to "
                    f"{rows - 1}"
                )
    return x


def _fits(shape: Shape, wanted: Sequence[int | None]) -> bool:
    """Return whether a shape is one of those that an input reads."""
    return len(shape) == len(wanted) and all(
        known in (None, length) for length, known in zip(shape, wanted, strict=True)
    )


def check_y(y: Any, samples: int, what: str = "y") -> Array:
    """Return y as a plain array; raise unless it has an entry for each sample."""
    if type(y) is not np.ndarray:
        y = _flat(as_array(y, what))
    if y.ndim == 0:
        raise ValueError(
            f"{what} has shape (), one number: it has an entry for each sample"
        )
    if y.dtype.kind not in "fiub":
        raise TypeError(f"{what} holds labels or numbers, got {y.dtype}" + _coded(y))
    if len(y) != samples:
        raise ValueError(
            f"the samples and their labels differ in number: {samples} samples, "
            f"{what} has shape {y.shape}"
        )
    check_valid(y, f"read {what}")
    return np.asarray(y)


def target_column(
    y: Array,
    field: Field,
    what: str = "y",
    first: int = 0,
    file: FileColumn | None = None,
) -> Column:
    """Return y as the column that a loss reads, with labels checked block by block.

    `first` is the index of the first sample in the user's arrays.
    """
    shaped = _shaped(y, field, what)
    column = Column(field.name, shaped, file=file if shaped.size == y.size else None)
    if field.dtype == "int32":
        for start in range(0, len(y), column.block):
            rows = slice(start, min(start + column.block, len(y)))
            part = column.array[rows] if column.is_plain else column.read(rows)
            _check_labels(part, field.classes, what, first + start)
        column.checked = True
    return column


def _flat(array: Any) -> Any:
    return np.asarray(array) if isinstance(array, Frame) else array


def _shaped(y: Array, field: Field, what: str) -> Array:
    """Return y in the shape of the field, adding or removing a last axis of 1."""
    wanted = (len(y), *field.shape)
    if y.shape in (wanted, (*wanted, 1)) or (*y.shape, 1) == wanted:
        return y.reshape(wanted)
    if field.filler is not None and _is_shorter(y, wanted):
        widths = [*[(0, 0)] * (y.ndim - 1), (0, wanted[-1] - y.shape[-1])]
        return np.pad(y, widths, constant_values=field.filler)
    if field.dtype == "int32" and not field.shape:
        raise ValueError(
            f"{what} has shape {y.shape}; labels have shape ({len(y)},) or "
            f"({len(y)}, 1), one integer a sample" + _one_hot_hint(y, field, what)
        )
    raise ValueError(
        f"{what} has shape {y.shape}, but the loss reads {show_shape(field.shape)}"
        + (
            ": if these are labels, use a sparse categorical loss, or make them one-hot"
            if field.dtype == "float32"
            and y.shape in (wanted[:-1], (*wanted[:-1], 1))
            and _are_labels(y, wanted[-1])
            else ""
        )
    )


def _is_shorter(y: Array, wanted: Shape) -> bool:
    """Return whether an array lacks nothing but the end of its last axis."""
    return y.shape[:-1] == wanted[:-1] and y.shape[-1] < wanted[-1]


def _one_hot_hint(y: Array, field: Field, what: str) -> str:
    """Return a hint on converting one-hot labels, or nothing if y is not one-hot."""
    if y.ndim != 2 or field.classes not in (None, y.shape[1]):
        return ""
    for part in _parts(y):
        if not (((part == 0) | (part == 1)).all() and (part.sum(1) == 1).all()):
            return ""
    return f": they are one-hot, pass {what}.argmax(1)"


def _are_labels(y: Array, classes: int) -> bool:
    return all(
        ((part >= 0) & (part < classes) & (np.trunc(part) == part)).all()
        for part in _parts(y)
    )


def _parts(y: Array) -> Iterator[Array]:
    """Yield an array in parts, to bound the size of temporaries."""
    step = max(1, _PART * len(y) // (y.size or 1))
    for start in range(0, len(y), step):
        yield y[start : start + step]


def _check_labels(y: Array, classes: int | None, what: str, first: int) -> None:
    """Refuse values that are not labels from 0 to `classes` - 1."""
    if y.dtype.kind == "f" or classes is None:
        whole(y, np.dtype(np.int32), what)
    if classes is None:
        return
    # This runs in each step; ndarray.min() and max() would add Python calls.
    if np.minimum.reduce(y, None) < 0 or np.maximum.reduce(y, None) >= classes:
        place = np.argwhere((y < 0) | (y >= classes))[0]
        shown = ", ".join(map(str, (first + place[0], *place[1:])))
        raise ValueError(
            f"label {int(y[tuple(place)])} at {what}[{shown}] is out of range: the "
            f"model has {classes} outputs, so labels are 0 to {classes - 1}"
        )


def conform_weights(weights: Any, samples: int, what: str = "sample_weight") -> Array:
    """Return weights per sample or per step; batches convert them to float32."""
    if type(weights) is not np.ndarray:
        weights = _flat(as_array(weights, what))
    if weights.shape[:1] != (samples,):
        raise ValueError(
            f"{what} has shape {weights.shape}, but there are {samples} samples: it "
            "has one number for each"
        )
    if weights.dtype.kind not in "fiub":
        raise TypeError(f"{what} holds numbers, got {weights.dtype}")
    check_valid(weights, f"read {what}")
    shape = weights.shape[:1] if weights.shape[1:] == (1,) else weights.shape
    return np.asarray(weights).reshape(shape)


def check_steps(weights: Array, steps: Shape) -> None:
    """Refuse sample weights that do not match losses of shape `steps` per sample."""
    if weights.shape[1:] != steps[: weights.ndim - 1]:
        several = f", or has shape {(len(weights), *steps)}" if steps else ""
        raise ValueError(
            f"sample_weight has shape {weights.shape}, which does not fit losses of "
            f"shape {(len(weights), *steps)}: it is one number for each sample{several}"
        )


def class_weights(
    name: str, table: Mapping[int, float], y: Column, field: Field, own: Array | None
) -> ClassWeights:
    """Return the column of class weights times the samples' own weights, if any."""
    axes = y.array.ndim - 1  # axes of one sample
    if axes > (field.dtype != "int32") and y.array.size > len(y.array):
        raise ValueError("class_weight is for one label a sample: pass sample_weight")
    if field.classes is not None and max(table, default=0) >= field.classes:
        raise ValueError(
            f"class_weight has the class {max(table)}, and the model's are 0 to "
            f"{field.classes - 1}"
        )
    return ClassWeights(name, y, table, own)
