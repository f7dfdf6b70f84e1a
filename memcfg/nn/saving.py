"""Keras's functions for files and configurations, which other modules have, too."""

from __future__ import annotations

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

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "register_keras_serializable",
    "save_model",
    "serialize_keras_object",
]
