"""Keras's utilities: arrays, datasets of folders, images, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn import ops
from memcfg.nn._batch_parts import (
    get_source_inputs,
    is_keras_tensor,
    pack_x_y_sample_weight,
    standardize_dtype,
    unpack_x_y_sample_weight,
)
from memcfg.nn._keras_names import absent
from memcfg.nn._random import set_random_seed
from memcfg.nn.backend import clear_session
from memcfg.nn.drawing._plot_model import model_to_dot, plot_model
from memcfg.nn.exchange._configs import (
    deserialize_keras_object,
    serialize_keras_object,
)
from memcfg.nn.exchange._custom_objects import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from memcfg.nn.exchange._settings import Config
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers.categories._feature_space import FeatureSpace
from memcfg.nn.loading._audio_dataset import audio_dataset_from_directory
from memcfg.nn.loading._get_file import get_file
from memcfg.nn.loading._image_dataset import image_dataset_from_directory
from memcfg.nn.loading._images import array_to_img, img_to_array, load_img, save_img
from memcfg.nn.loading._progbar import Progbar
from memcfg.nn.loading._py_dataset import PyDataset
from memcfg.nn.loading._split_dataset import split_dataset
from memcfg.nn.loading._text_dataset import text_dataset_from_directory
from memcfg.nn.loading._timeseries import timeseries_dataset_from_array
from memcfg.nn.training.progress._progress import (
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)
from memcfg.nn.utils import bounding_boxes as bounding_boxes

if TYPE_CHECKING:
    from collections import abc

    import numpy.typing as npt

__all__ = [
    "Config",
    "CustomObjectScope",
    "FeatureSpace",
    "Progbar",
    "PyDataset",
    "Sequence",
    "array_to_img",
    "audio_dataset_from_directory",
    "clear_session",
    "custom_object_scope",
    "deserialize_keras_object",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "get_custom_objects",
    "get_file",
    "get_registered_name",
    "get_registered_object",
    "get_source_inputs",
    "image_dataset_from_directory",
    "img_to_array",
    "is_interactive_logging_enabled",
    "is_keras_tensor",
    "load_img",
    "model_to_dot",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "plot_model",
    "register_keras_serializable",
    "save_img",
    "serialize_keras_object",
    "set_random_seed",
    "split_dataset",
    "standardize_dtype",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
    "unpack_x_y_sample_weight",
]

Sequence = PyDataset  # the name of Keras 2

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


def to_categorical(
    x: npt.ArrayLike, num_classes: int | None = None
) -> npt.NDArray[np.float32]:
    """Convert integer labels to one-hot rows.

    Parameters
    ----------
    x : array_like of int
        Labels from 0; a last axis of length 1 is dropped.
    num_classes : int, optional
        The length of a row. None: one more than the largest label.

    Returns
    -------
    numpy.ndarray
        float32 array of shape ``x.shape + (num_classes,)``.

    Raises
    ------
    TypeError
        If the labels are not integers.
    ValueError
        If a label is negative, or not below `num_classes`.
    """
    labels = np.asarray(x)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels.reshape(labels.shape[:-1])
    most = int(labels.max(initial=-1))
    count = most + 1 if num_classes is None else num_classes
    if labels.min(initial=0) < 0 or most >= count:
        raise ValueError(
            f"labels must be in 0 to {count - 1}, got {int(labels.min(initial=0))} to "
            f"{most}"
        )
    rows = np.zeros((*labels.shape, count), np.float32)
    np.put_along_axis(rows, labels[..., None].astype(np.intp), 1, axis=-1)
    return rows


def normalize(x: Any, axis: int = -1, order: int = 2) -> Any:
    """Divide an array or a tensor by its norm along an axis; zeros are unchanged.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        The array.
    axis : int, default -1
        The axis along which the norm is computed.
    order : int, default 2
        The order of the norm, as for `numpy.linalg.norm`.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The normalized array, of the shape of x.
    """
    if isinstance(x, SymbolicTensor):
        return ops.normalize(x, axis, order)
    array = np.asarray(x)
    norm = np.linalg.norm(array, order, axis, keepdims=True)
    return array / np.where(norm == 0, 1, norm)


def pad_sequences(
    sequences: abc.Sequence[abc.Sequence[Any]],
    maxlen: int | None = None,
    dtype: npt.DTypeLike = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> npt.NDArray[Any]:
    """Pad or cut sequences to one length and return them as an array.

    Parameters
    ----------
    sequences : sequence of sequence
        The sequences, each of scalars or of arrays of one shape.
    maxlen : int, optional
        The length of the result. None: the length of the longest sequence.
    dtype : dtype, default "int32"
        The dtype of the result.
    padding : {"pre", "post"}, default "pre"
        Whether short sequences are padded at the start or at the end.
    truncating : {"pre", "post"}, default "pre"
        Whether long sequences are cut at the start or at the end.
    value : float, default 0.0
        The padding value.

    Returns
    -------
    numpy.ndarray
        Array of shape ``(len(sequences), maxlen, ...)``.

    Raises
    ------
    ValueError
        If `padding` or `truncating` is neither ``"pre"`` nor ``"post"``, or the
        elements of the sequences have different shapes.
    """
    for name, given in (("padding", padding), ("truncating", truncating)):
        if given not in ("pre", "post"):
            raise ValueError(f'{name} must be "pre" or "post", got {given!r}')
    rows = [np.asarray(each, dtype) for each in sequences]
    length = max(map(len, rows), default=0) if maxlen is None else maxlen
    sample = next((row.shape[1:] for row in rows if len(row)), ())
    result = np.full((len(rows), length, *sample), value, dtype)
    for target, row in zip(result, rows, strict=True):
        if not len(row) or not length:
            continue
        if row.shape[1:] != sample:
            raise ValueError(
                f"elements of all sequences must have the same shape, got {sample} and "
                f"{row.shape[1:]}"
            )
        kept = row[-length:] if truncating == "pre" else row[:length]
        if padding == "pre":
            target[length - len(kept) :] = kept
        else:
            target[: len(kept)] = kept
    return result
