"""Pixels as networks of ImageNet take them, and the names of its classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn import ops
from memcfg.nn._argument_checks import integer
from memcfg.nn.applications._remote_file import RemoteFile
from memcfg.nn.layers import SymbolicTensor

__all__ = ["decode_predictions", "preprocess_input"]

_MODES = ("caffe", "tf", "torch")
_FORMATS = ("channels_last", "channels_first")
_MEANS = {  # of ImageNet's pixels: blue to red, and red to blue
    "caffe": (103.939, 116.779, 123.68),
    "torch": (0.485, 0.456, 0.406),
}
_DEVIATIONS = (0.229, 0.224, 0.225)
_CLASSES = 1000
_INDEX = RemoteFile(
    "https://storage.googleapis.com/download.tensorflow.org/data/"
    "imagenet_class_index.json",
    "c2c37ea517e94d9795004a39431a14cb",
)


def preprocess_input(
    x: Any, data_format: str | None = None, mode: str = "caffe"
) -> Any:
    """Scale pixels as the networks of a library were trained with.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        Images of red, green and blue from 0 to 255, or a batch of them. An array of
        floats is overwritten, as in Keras.
    data_format : {"channels_last", "channels_first"}, optional
        Where the channels are; by default they are last.
    mode : {"caffe", "tf", "torch"}, default "caffe"
        ``"caffe"``: blue, green and red, less the mean of each. ``"tf"``: from -1 to 1.
        ``"torch"``: from 0 to 1, then with mean 0 and variance 1 for each channel.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The pixels; float32 if they were integers.

    Raises
    ------
    ValueError
        If an argument is unknown, or there are not three channels and `mode` is not
        ``"tf"``.

    Examples
    --------
    >>> import numpy as np
    >>> from memcfg.nn.applications import imagenet_utils
    >>> imagenet_utils.preprocess_input(np.full((1, 1, 3), 255), mode="tf")
    array([[[1., 1., 1.]]], dtype=float32)
    """
    if mode not in _MODES:
        raise unknown("mode", str(mode), _MODES, "preprocess_input: ")
    if data_format not in (None, *_FORMATS):
        raise unknown("data_format", str(data_format), _FORMATS, "preprocess_input: ")
    axis = -3 if data_format == "channels_first" else -1
    if not isinstance(x, SymbolicTensor):
        x = np.asarray(x)
    if len(x.shape) < 3 or (mode != "tf" and x.shape[axis] != 3):
        raise ValueError(
            f"preprocess_input takes images with three channels, not shape {x.shape}"
        )
    return (_of_array if isinstance(x, np.ndarray) else _of_tensor)(x, axis, mode)


def _of_array(x: np.ndarray, axis: int, mode: str) -> np.ndarray:
    if x.dtype.kind != "f":
        x = x.astype(np.float32)
    if not x.flags.writeable:
        x = x.copy()
    if mode == "tf":
        x /= 127.5
        x -= 1.0
        return x
    if mode == "torch":
        x /= 255.0
    else:
        x = np.flip(x, axis)
    last = np.moveaxis(x, axis, -1)
    last -= np.array(_MEANS[mode], x.dtype)
    if mode == "torch":
        last /= np.array(_DEVIATIONS, x.dtype)
    return x


def _of_tensor(x: SymbolicTensor, axis: int, mode: str) -> Any:
    x = ops.cast(x, "float32")
    if mode == "tf":
        return x / 127.5 - 1.0
    shape = [1] * len(x.shape)
    shape[axis] = 3
    mean, deviation = (
        np.reshape(np.array(each, np.float32), shape)
        for each in (_MEANS[mode], _DEVIATIONS)
    )
    if mode == "caffe":
        return ops.flip(x, axis) - mean
    return (x / 255.0 - mean) / deviation


def decode_predictions(preds: Any, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Return the names of the most probable classes of ImageNet.

    Parameters
    ----------
    preds : array_like
        Probabilities or logits, of shape (n, 1000).
    top : int, default 5
        How many classes are returned for each sample.

    Returns
    -------
    list of list of (str, str, float)
        For each sample, the classes in falling order: identifier in WordNet, name, and
        number in `preds`.

    Raises
    ------
    ValueError
        If the shape differs.
    OSError
        If the list of names cannot be downloaded.
    """
    rows = np.asarray(preds)
    if rows.ndim != 2 or rows.shape[1] != _CLASSES:
        raise ValueError(
            f"decode_predictions takes numbers of shape (n, {_CLASSES}), not "
            f"{rows.shape}"
        )
    count = integer(top, "decode_predictions: top")
    names = _names()
    return [
        [(*names[i], row[i]) for i in np.argsort(-row, kind="stable")[:count]]
        for row in rows
    ]


def _names() -> list[tuple[str, str]]:
    """Return the identifier and the name of each class."""
    path = Path(_INDEX.fetched("decode_predictions", "sort the numbers yourself"))
    index = json.loads(path.read_text(encoding="utf-8"))
    return [tuple(index[str(i)]) for i in range(_CLASSES)]
