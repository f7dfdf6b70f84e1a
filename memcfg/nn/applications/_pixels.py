"""The functions `preprocess_input` of the modules of networks."""

from __future__ import annotations

from typing import Any

from memcfg.nn.applications.imagenet_utils import preprocess_input

__all__ = ["caffe_pixels", "same_pixels", "tf_pixels", "torch_pixels"]


def caffe_pixels(x: Any, data_format: str | None = None) -> Any:
    """Return blue, green and red pixels, less the mean of each over ImageNet.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        Images of red, green and blue from 0 to 255, or a batch of them. An array of
        floats is overwritten, as in Keras.
    data_format : {"channels_last", "channels_first"}, optional
        Where the channels are; by default they are last.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The pixels; float32 if they were integers.

    Raises
    ------
    ValueError
        If there are not three channels.
    """
    return preprocess_input(x, data_format, "caffe")


def tf_pixels(x: Any, data_format: str | None = None) -> Any:
    """Scale pixels from 0 to 255 to between -1 and 1.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        Images, or a batch of them. An array of floats is overwritten, as in Keras.
    data_format : {"channels_last", "channels_first"}, optional
        Where the channels are, which makes no difference.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The pixels; float32 if they were integers.

    Raises
    ------
    ValueError
        If `data_format` is unknown, or there are less than three axes.
    """
    return preprocess_input(x, data_format, "tf")


def torch_pixels(x: Any, data_format: str | None = None) -> Any:
    """Scale pixels to mean 0 and variance 1 for each channel of ImageNet.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        Images of red, green and blue from 0 to 255, or a batch of them. An array of
        floats is overwritten, as in Keras.
    data_format : {"channels_last", "channels_first"}, optional
        Where the channels are; by default they are last.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The pixels; float32 if they were integers.

    Raises
    ------
    ValueError
        If there are not three channels.
    """
    return preprocess_input(x, data_format, "torch")


def same_pixels(x: Any, data_format: str | None = None) -> Any:
    """Return pixels as they are: the network scales them.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        Images of red, green and blue from 0 to 255, or a batch of them.
    data_format : {"channels_last", "channels_first"}, optional
        Where the channels are, which makes no difference.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        `x`.
    """
    del data_format
    return x
