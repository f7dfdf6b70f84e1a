"""What an element of a dataset or of an iterable stands for: samples and labels.

Owns the forms that a batch may have. Refuses masks and weights, which no layer and no
loss reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.data import DataSet, MultiDataSet

__all__ = ["unpack"]


def unpack(element: Any, *, labelled: bool) -> tuple[Any, Any]:
    """Take a batch apart.

    Parameters
    ----------
    element : tuple, DataSet, MultiDataSet or numpy.ndarray
        ``(x, y)`` or a data set; where labels are not read also ``x`` or ``(x,)``.
    labelled : bool
        Whether labels are read.

    Returns
    -------
    tuple of object
        Samples and labels, not looked at; the labels are None if they are not read.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it has other parts, or masks.
    """
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
