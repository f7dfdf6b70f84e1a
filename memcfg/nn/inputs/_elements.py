"""What an element of a dataset or of an iterable stands for: samples and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import DataSet, MultiDataSet, TensorSpec
from memcfg.nn.layers._layer import show_shape

if TYPE_CHECKING:
    from memcfg.nn.inputs._array_checks import Target
    from memcfg.nn.layers._layer import Shape

__all__ = ["BATCH_FIRST", "check_spec", "sample_shape_of", "unpack"]


def unpack(element: Any, *, labelled: bool) -> tuple[Any, Any]:
    """Take a batch apart."""
    parts = _parts(element)
    if labelled and len(parts) != 2:
        raise ValueError(
            f"a batch is (x, y), samples and labels; this one has {_count(parts)}"
            + ("; sample weights are not supported" if len(parts) == 3 else "")
        )
    if len(parts) not in (1, 2):
        raise ValueError(f"a batch is x, (x,) or (x, y); this one has {_count(parts)}")
    return parts[0], parts[1] if labelled else None


def _parts(element: Any) -> tuple[Any, ...]:
    if isinstance(element, DataSet):
        _check_masks(element.features_mask, element.labels_mask)
        return _present(element.features, element.labels)
    if isinstance(element, MultiDataSet):
        _check_masks(*element.features_masks, *element.labels_masks)
        return _present(
            _only(element.features, "features"), _only(element.labels, "labels")
        )
    if isinstance(element, dict):
        raise TypeError(
            f"a batch is a tuple (x, y), not a dict with {', '.join(map(str, element))}"
            ": models have one input; map the dict to a tuple"
        )
    if isinstance(element, list) and all(isinstance(a, np.ndarray) for a in element):
        return tuple(element)  # as PyTorch's loaders give it
    return element if isinstance(element, tuple) else (element,)


def _check_masks(*masks: Any) -> None:
    if any(mask is not None for mask in masks):
        raise ValueError(
            "a data set with masks was given, and no layer reads masks yet: make it "
            "without them"
        )


def _only(arrays: tuple[Any, ...], what: str) -> Any:
    """Return the one array of a group; None if there is none."""
    if len(arrays) > 1:
        raise ValueError(
            f"a MultiDataSet with {len(arrays)} arrays of {what} was given: models "
            "have one input and one output"
        )
    return arrays[0] if arrays else None


def _present(features: Any, labels: Any) -> tuple[Any, ...]:
    return (features,) if labels is None else (features, labels)


def _count(parts: tuple[Any, ...]) -> str:
    return f"{len(parts)} part" + "s" * (len(parts) != 1)


BATCH_FIRST = "make batches first, as dataset.batch(batch_size) does"


def sample_shape_of(spec: Any) -> Shape | None:
    """Return the shape of a sample."""
    x = spec[0] if isinstance(spec, tuple) and spec else spec
    if not isinstance(x, TensorSpec) or x.shape is None or len(x.shape) < 2:
        return None
    known = tuple(size for size in x.shape[1:] if size is not None)
    return known if len(known) == len(x.shape) - 1 else None


def check_spec(spec: Any, target: Target) -> None:
    """Refuse a dataset whose elements cannot be what a model reads."""
    if spec is None:
        return
    x, y = unpack(spec, labelled=target.classes is not None)
    if isinstance(x, TensorSpec):
        _check_samples(x, target.shape)
    if isinstance(y, TensorSpec) and not np.issubdtype(y.dtype, np.integer):
        raise TypeError(
            f"y holds integer class labels; the dataset's are {y.dtype}: convert them "
            'with dataset.map, y.astype("int64"), if their values are labels'
        )


def _check_samples(x: TensorSpec, wanted: Shape) -> None:
    if x.dtype != np.float32:
        raise TypeError(
            f"x must be float32, and the dataset's is {x.dtype}: convert it with "
            'dataset.map, x.astype("float32"), or before the dataset is made'
        )
    if x.shape is None:
        return
    found = x.shape[1:]
    alike = len(found) == len(wanted) and all(
        size in (None, want) for size, want in zip(found, wanted, strict=True)
    )
    if not x.shape or not alike:
        raise ValueError(
            f"the dataset's x has shape {x.shape}, but the model reads "
            f"{show_shape(wanted)}"
            + (f": {BATCH_FIRST}" if x.shape == tuple(wanted) else "")
        )
