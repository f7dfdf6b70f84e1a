"""Models, by the names that users of Keras know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._keras_names import absent
from memcfg.nn._model import Model
from memcfg.nn._sequential import Sequential

__all__ = ["Model", "Sequential"]

if not TYPE_CHECKING:  # a checker would take any name to be there
    __getattr__ = absent(__name__)
