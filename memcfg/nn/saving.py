"""Keras's functions for files and configurations, which other modules have, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memcfg._missing import refuse
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
from memcfg.nn.models import load_model, save_model

if TYPE_CHECKING:
    import os

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "load_weights",
    "register_keras_serializable",
    "save_model",
    "save_weights",
    "serialize_keras_object",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        reasons = {"KerasFileEditor": ": read files by load_model, or with h5py"}
        refuse(__name__, name, reasons.get(name, ""))


def save_weights(
    model: Any, filepath: str | os.PathLike[str], overwrite: bool = True
) -> None:
    """Write the weights of a model to a file; see `Model.save_weights`.

    Parameters
    ----------
    model : Model
        The model.
    filepath : str or path-like
        The file.
    overwrite : bool, default True
        Whether to replace an existing file.
    """
    model.save_weights(filepath, overwrite=overwrite)


def load_weights(
    model: Any, filepath: str | os.PathLike[str], skip_mismatch: bool = False
) -> None:
    """Replace the weights of a model by those of a file; see `Model.load_weights`.

    Parameters
    ----------
    model : Model
        The model.
    filepath : str or path-like
        The file.
    skip_mismatch : bool, default False
        Whether to leave out weights of other shapes.
    """
    model.load_weights(filepath, skip_mismatch=skip_mismatch)
