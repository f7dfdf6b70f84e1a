"""What arrays of samples, targets and sample weights must be.

Nothing is converted here: batches convert rows on their way into a program.
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
    from collections.abc import Iterator, Mapping, Sequence

    from memcfg.data.rows._file_rows import FileColumn

__all__ = [
    "Field",
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

_PART = 1 << 16  # elements that are looked at at once

Array = npt.NDArray[Any]


class Table(NamedTuple):
    """What indices are rows of."""

    name: str
    rows: int


class Field(NamedTuple):
    """What one array of a batch must be."""

    name: str  # of the program's input
    shape: Shape  # of a sample
    dtype: str
    classes: int | None = None  # of labels
    table: Table | None = None  # of which samples are rows


def check_x(x: Any, what: str = "x", field: Field | None = None) -> Array:
    """Return samples as an array, for an input if that is known."""
    if type(x) is not np.ndarray:
        x = as_array(x, what)
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
    if result.ndim < 2:
        raise ValueError(
            f"{what} needs an axis of samples and one more at least, got {result.shape}"
        )
    return result


def _coded(array: Any) -> str:
    """Say how words become numbers."""
    words = array.dtype.kind in "US"
    hint = ": numpy.unique(words, return_inverse=True)[1] are numbers for words"
    return hint if words else ""


def _ranked(x: Array, shape: Shape) -> Array:
    """Add or take away a last axis of one, as Keras does."""
    if shape and x.ndim == len(shape) and shape[-1] == 1:
        return x[..., None]
    return x[..., 0] if x.ndim == len(shape) + 2 and x.shape[-1] == 1 else x


def check_samples(arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Refuse arrays of unequal numbers of samples."""
    for array, name in zip(arrays, names, strict=True):
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the samples and what belongs to them differ in number: {names[0]} "
                f"has {len(arrays[0])} samples, {name} has shape {array.shape}"
            )


def conform_x(x: Array, field: Field, what: str = "x") -> Array:
    """Refuse samples that an input cannot take."""
    if x.shape[1:] != field.shape:
        raise ValueError(
            f"{what} has shape {x.shape}, but the model reads {show_shape(field.shape)}"
        )
    if field.table is not None and type(x) is np.ndarray:
        table, rows = field.table
        ends = np.minimum.reduce(x, None), np.maximum.reduce(x, None)
        for end in map(float, ends):  # beyond int32: the conversion says what is wrong
            if -(2**31) <= end <= -1 or rows <= end < 2**31:
                raise ValueError(
                    f"{what} has the index {int(end)}, which is out of range: it is a "
                    f"row of {table!r}, which has {rows}, so indices are 0 to "
                    f"{rows - 1}"
                )
    return x


def check_y(y: Any, samples: int, what: str = "y") -> Array:
    """Return y as a plain array of so many samples, or say what is wrong with it."""
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
    """Return y as a loss reads it; its labels are checked, a block at a time.

    `first` is the number of the first sample in what the user gave.
    """
    column = Column(field.name, _shaped(y, field, what), file=file)
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
    """Return y in the shape that is wanted: an axis of one may be there or not."""
    wanted = (len(y), *field.shape)
    if y.shape in (wanted, (*wanted, 1)) or (*y.shape, 1) == wanted:
        return y.reshape(wanted)
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


def _one_hot_hint(y: Array, field: Field, what: str) -> str:
    """Say how labels are made of one-hot ones, if they are."""
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
    """Yield an array a part at a time: what is computed of one is small."""
    step = max(1, _PART * len(y) // (y.size or 1))
    for start in range(0, len(y), step):
        yield y[start : start + step]


def _check_labels(y: Array, classes: int | None, what: str, first: int) -> None:
    """Refuse what is not a label of so many classes."""
    if y.dtype.kind == "f" or classes is None:
        whole(y, np.dtype(np.int32), what)
    if classes is None:
        return
    # Not min() and max(): each is a call of Python, and this is amid each step.
    if np.minimum.reduce(y, None) < 0 or np.maximum.reduce(y, None) >= classes:
        place = np.argwhere((y < 0) | (y >= classes))[0]
        shown = ", ".join(map(str, (first + place[0], *place[1:])))
        raise ValueError(
            f"label {int(y[tuple(place)])} at {what}[{shown}] is out of range: the "
            f"model has {classes} outputs, so labels are 0 to {classes - 1}"
        )


def conform_weights(weights: Any, samples: int, what: str = "sample_weight") -> Array:
    """Return sample weights, of samples or steps; they become float32 in batches."""
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
    """Refuse sample weights that fit no losses, of `steps` in each sample."""
    if weights.shape[1:] != steps[: weights.ndim - 1]:
        several = f", or has shape {(len(weights), *steps)}" if steps else ""
        raise ValueError(
            f"sample_weight has shape {weights.shape}, which does not fit losses of "
            f"shape {(len(weights), *steps)}: it is one number for each sample{several}"
        )


def class_weights(
    name: str, table: Mapping[int, float], y: Column, field: Field, own: Array | None
) -> ClassWeights:
    """Return the column of weights by class, times those that samples have."""
    axes = y.array.ndim - 1  # of a sample
    if axes > (field.dtype != "int32") and y.array.size > len(y.array):
        raise ValueError("class_weight is for one label a sample: pass sample_weight")
    if field.classes is not None and max(table, default=0) >= field.classes:
        raise ValueError(
            f"class_weight has the class {max(table)}, and the model's are 0 to "
            f"{field.classes - 1}"
        )
    return ClassWeights(name, y, table, own)
