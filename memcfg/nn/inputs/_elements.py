"""The interpretation of a stream's elements as samples, labels and weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import DataSet, MultiDataSet, TensorSpec
from memcfg.nn._nesting import Structure, are_arrays, leaves, taken_apart
from memcfg.nn.inputs._samples import SampleShapes, samples_of, targets_of
from memcfg.nn.layers._layer import show_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.inputs._array_checks import Field
    from memcfg.nn.inputs._samples import Wanted
    from memcfg.nn.layers._layer import Shape

_FLOAT = 4  # bytes per number
_LABEL = 8  # bytes per label, int64 as in most datasets

__all__ = [
    "BATCH_FIRST",
    "check_masks",
    "check_spec",
    "itemsizes",
    "labels_masks",
    "sample_shapes_of",
    "unpack",
    "weights_of",
]


def unpack(
    element: Any, *, labelled: bool, masked: bool = False
) -> tuple[Any, Any, Any]:
    """Split a batch into x, y and sample weights, with None for absent parts.

    A data set may have masks of labels if it is `masked`: see `labels_masks`.
    """
    parts = _parts(element, masked)
    if labelled and isinstance(element, dict):
        raise TypeError(
            f"a batch is a tuple (x, y), not a dict with {', '.join(map(str, element))}"
        )
    if labelled and len(parts) not in (2, 3):
        raise ValueError(
            "a batch is (x, y), samples and labels, or (x, y, sample_weight); this one "
            f"has {_count(parts)}"
        )
    if len(parts) not in (1, 2, 3):
        raise ValueError(
            f"a batch is x, (x,), (x, y) or (x, y, sample_weight); this one has "
            f"{_count(parts)}"
        )
    x, y, weights = (*parts, None, None)[:3]
    return (x, y, weights) if labelled else (x, None, None)


def labels_masks(element: Any) -> tuple[Any, ...]:
    """Return the mask of the labels of each output, or None, of a data set."""
    if isinstance(element, DataSet):
        return (element.labels_mask,)
    return tuple(element.labels_masks) if isinstance(element, MultiDataSet) else ()


def _parts(element: Any, masked: bool) -> tuple[Any, ...]:
    of_labels = () if masked else labels_masks(element)
    if isinstance(element, DataSet):
        check_masks(element.features_mask, *of_labels)
        return _present(element.features, element.labels)
    if isinstance(element, MultiDataSet):
        check_masks(*element.features_masks, *of_labels)
        return _present(_group(element.features), _group(element.labels))
    if isinstance(element, list) and are_arrays(element):
        return tuple(element)  # as PyTorch's data loaders yield it
    return element if isinstance(element, tuple) else (element,)


def check_masks(*masks: Any) -> None:
    """Refuse data sets with masks."""
    if any(mask is not None for mask in masks):
        raise ValueError(
            "a data set with masks was given: layers make their own masks, and only "
            "do_evaluation reads masks of labels. Make it without them"
        )


def _group(arrays: tuple[Any, ...]) -> Any:
    """Return several arrays as a tuple, one alone, and None for none."""
    return arrays if len(arrays) > 1 else (*arrays, None)[0]


def _present(features: Any, labels: Any) -> tuple[Any, ...]:
    return (features,) if labels is None else (features, labels)


def _count(parts: tuple[Any, ...]) -> str:
    return f"{len(parts)} part" + "s" * (len(parts) != 1)


BATCH_FIRST = "make batches first, as dataset.batch(batch_size) does"


def sample_shapes_of(spec: Any) -> SampleShapes | None:
    """Return the shapes of a sample; None if unknown."""
    x = spec[0] if isinstance(spec, tuple) and spec else spec
    parts, form = taken_apart(x, lambda _: False)
    shapes = [_sample_shape(each) for each in parts]
    known = [shape for shape in shapes if shape is not None]
    if not shapes or len(known) < len(shapes):
        return None
    return SampleShapes(known, Structure.of(form, list(map(str, range(len(parts))))))


def _sample_shape(x: Any) -> Shape | None:
    if not isinstance(x, TensorSpec) or x.shape is None or len(x.shape) < 2:
        return None
    known = tuple(size for size in x.shape[1:] if size is not None)
    return known if len(known) == len(x.shape) - 1 else None


def weights_of(spec: Any) -> tuple[Shape, ...]:
    """Return the per-sample shapes of sample weights, as far as they are known."""
    weights = spec[2] if isinstance(spec, tuple) and len(spec) == 3 else None
    parts = [] if weights is None else leaves(weights)
    shapes = [(getattr(each, "shape", None) or ())[1:] for each in parts]
    return tuple(() if shape == (1,) or None in shape else shape for shape in shapes)


def check_spec(spec: Any, wanted: Wanted) -> None:
    """Refuse a dataset whose elements a model cannot read."""
    if spec is None:
        return
    x, y, _ = unpack(spec, labelled=bool(wanted.ys))
    xs, _names = samples_of(wanted, x, "x")
    for each, field in zip(xs, wanted.xs, strict=True):
        if isinstance(each, TensorSpec) and field.prepare is None:
            _check_samples(each, field)
    if not wanted.ys:
        return
    ys, _names = targets_of(wanted, y, "y")
    for each, field in zip(ys, wanted.ys, strict=True):
        if (
            isinstance(each, TensorSpec)
            and field.dtype == "int32"
            and np.dtype(each.dtype).kind not in "iufb"
        ):
            raise TypeError(
                f"y holds integer class labels; the dataset's are {each.dtype}: convert"
                ' them with dataset.map, y.astype("int64"), if their values are labels'
            )


def itemsizes(spec: Any, wanted: Wanted) -> list[int]:
    """Return the item size of each array in bytes; a typical one if unknown."""
    result: list[Any] = [None] * len(wanted.xs)
    if spec is not None:
        x, y, _ = unpack(spec, labelled=bool(wanted.ys))
        result = samples_of(wanted, x, "x")[0]
        if wanted.ys:
            result += targets_of(wanted, y, "y")[0]
    result += [None] * (len(wanted.xs) + len(wanted.ys) - len(result))
    return [
        each.dtype.itemsize
        if isinstance(each, TensorSpec) and field.prepare is None
        else _LABEL
        if field.dtype == "int32"
        else _FLOAT
        for each, field in zip(result, (*wanted.xs, *wanted.ys), strict=True)
    ]


def _check_samples(x: TensorSpec, field: Field) -> None:
    if np.dtype(x.dtype).kind not in "iufb":
        raise TypeError(
            f"x holds numbers, and the dataset's is {x.dtype}: convert it with "
            f'dataset.map, x.astype("{field.dtype}"), or before the dataset is made'
        )
    if x.shape is None:
        return
    wanted, unbatched = field.shape, x.shape == tuple(field.shape)
    # A last axis of 1 is added to batches, or removed from them.
    forms = [x.shape[1:], (*x.shape[1:], 1)]
    if x.shape[1:] and x.shape[-1] == 1:
        forms.append(x.shape[1:-1])
    if not x.shape or unbatched or not any(_are_alike(each, wanted) for each in forms):
        raise ValueError(
            f"the dataset's x has shape {x.shape}, but the model reads "
            f"{show_shape(wanted)}" + (f": {BATCH_FIRST}" if unbatched else "")
        )


def _are_alike(found: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    """Return whether shapes agree where both are known."""
    return len(found) == len(wanted) and all(
        None in (size, want) or size == want
        for size, want in zip(found, wanted, strict=True)
    )
