"""What the description of a dataset's elements tells before there is any.

Owns the comparison with a model. Refuses data: batches are checked one by one, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data import TensorSpec
from memcfg.nn.inputs._elements import unpack
from memcfg.nn.layers._symbolic import show_shape

if TYPE_CHECKING:
    from memcfg.nn.inputs._source import Target
    from memcfg.nn.layers._symbolic import Shape

__all__ = ["BATCH_FIRST", "check_spec", "sample_shape_of"]

BATCH_FIRST = "make batches first, as dataset.batch(batch_size) does"


def sample_shape_of(spec: Any) -> Shape | None:
    """Return the shape of a sample.

    Parameters
    ----------
    spec : nest of TensorSpec, or None
        What an element is; None where nobody knows.

    Returns
    -------
    tuple of int or None
        None where it does not tell.
    """
    x = spec[0] if isinstance(spec, tuple) and spec else spec
    if not isinstance(x, TensorSpec) or x.shape is None or len(x.shape) < 2:
        return None
    known = tuple(size for size in x.shape[1:] if size is not None)
    return known if len(known) == len(x.shape) - 1 else None


def check_spec(spec: Any, target: Target) -> None:
    """Refuse a dataset whose elements cannot be what a model reads.

    Parameters
    ----------
    spec : nest of TensorSpec, or None
        What an element is; None where nobody knows.
    target : Target
        What the model wants.

    Raises
    ------
    TypeError
        If samples are not float32, or labels no integers.
    ValueError
        If elements have other parts, or samples another shape.
    """
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
