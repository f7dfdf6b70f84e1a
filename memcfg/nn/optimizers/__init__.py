"""Optimizers with the names, arguments and formulas of Keras 3, and their schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._checks import unknown
from memcfg.nn._keras_names import ABSENT, absent
from memcfg.nn.exchange._configs import serialize_keras_object
from memcfg.nn.exchange._custom_objects import own_class
from memcfg.nn.optimizers import schedules
from memcfg.nn.optimizers._adafactor import Adafactor
from memcfg.nn.optimizers._adam import Adam, Adamax, AdamW, Nadam
from memcfg.nn.optimizers._descent import SGD, Lion
from memcfg.nn.optimizers._ftrl import Ftrl
from memcfg.nn.optimizers._lamb import Lamb
from memcfg.nn.optimizers._multiple import MultiOptimizer, OptimizerMap
from memcfg.nn.optimizers._muon import Muon
from memcfg.nn.optimizers._optimizer import Optimizer
from memcfg.nn.optimizers._scaled import Adadelta, Adagrad, RMSprop
from memcfg.nn.optimizers._schedule_free import ScheduleFreeAdamW

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "MultiOptimizer",
    "Muon",
    "Nadam",
    "Optimizer",
    "OptimizerMap",
    "RMSprop",
    "ScheduleFreeAdamW",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_KNOWN: dict[str, type[Optimizer]] = {
    each.kind: each
    for each in (
        *(SGD, Adam, AdamW, Adamax, Nadam),
        *(RMSprop, Adagrad, Adadelta, Lion, Adafactor, Lamb, Muon),
        *(Ftrl, ScheduleFreeAdamW, MultiOptimizer),
    )
}

_OF_LOWER = {name.lower(): name for name in ABSENT["optimizers"]}


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's settings as a dictionary.

    Parameters
    ----------
    optimizer : Optimizer
        An optimizer; its state is not part of the result.

    Returns
    -------
    dict
        ``{"class_name": ..., "config": ...}``, and the module and registered name.
    """
    result: dict[str, Any] = serialize_keras_object(optimizer)
    return result


def deserialize(
    config: Mapping[str, Any], custom_objects: dict[str, Any] | None = None
) -> Optimizer:
    """Create an optimizer from the settings that `serialize` returned.

    Parameters
    ----------
    config : mapping
        ``{"class_name": ..., "config": ...}``; the case of the name does not matter.
    custom_objects : dict, optional
        Your own optimizers and schedules by name, beside those that are registered.

    Returns
    -------
    Optimizer
        The optimizer, without state.

    Raises
    ------
    ValueError
        If there is no optimizer of this name.
    """
    name = str(config.get("class_name"))
    kind = own_class(config, custom_objects) or _KNOWN.get(name.lower())
    if kind is None and name.lower() in _OF_LOWER:
        known = _OF_LOWER[name.lower()]
        raise ValueError(f"memcfg has no {known}: {ABSENT['optimizers'][known]}")
    if kind is None:
        raise unknown("optimizer", name, _KNOWN)
    made: Optimizer = kind.from_config(config.get("config", {}), custom_objects)
    return made


def get(identifier: Any) -> Optimizer:
    """Return an optimizer from its name, its settings or an instance.

    Parameters
    ----------
    identifier : str, dict or Optimizer
        A name such as ``"adam"``, for an optimizer with default settings; a dictionary
        that `serialize` returned; or an optimizer, which is returned as it is.

    Returns
    -------
    Optimizer
        The optimizer.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If the identifier is anything else, such as a class.
    """
    if isinstance(identifier, str):
        return deserialize({"class_name": identifier})
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, type) and issubclass(identifier, Optimizer):
        name = identifier.__name__
        raise TypeError(f"pass an optimizer, {name}(), not its class")
    if not isinstance(identifier, Optimizer):
        raise TypeError(
            "an optimizer must be an instance such as Adam(0.001), or a name such as "
            f"'adam', got {identifier!r}"
        )
    return identifier
