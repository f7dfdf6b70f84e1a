"""The most epochs of a `fit` and steps of an epoch, for trying a program out."""

from __future__ import annotations

import os
import warnings
from typing import Any

from memcfg._caller import outside
from memcfg.nn._argument_checks import integer

__all__ = [
    "limited",
    "max_epochs",
    "max_steps_per_epoch",
    "set_max_epochs",
    "set_max_steps_per_epoch",
]

_UNSET: Any = object()
_limits: dict[str, Any] = {}  # what was set, by the environment's variables of Keras
_EPOCHS, _STEPS = "KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH"


def _limit(variable: str) -> int | None:
    given = _limits.get(variable, _UNSET)
    if given is not _UNSET:
        return given  # type: ignore[no-any-return]
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"the environment's {variable} must be a positive integer, got {text!r}"
        )
    return int(text)


def _set(variable: str, value: Any, what: str) -> None:
    _limits[variable] = None if value is None else integer(value, what)


def max_epochs() -> int | None:
    """Return the most epochs of a `Model.fit`, or None.

    Returns
    -------
    int or None
        What `set_max_epochs` was given, else the environment's ``KERAS_MAX_EPOCHS``.

    Raises
    ------
    ValueError
        If the environment's variable is no positive integer.
    """
    return _limit(_EPOCHS)


def set_max_epochs(max_epochs: int | None) -> None:
    """Limit the epochs of every `Model.fit`, to try a program out.

    Parameters
    ----------
    max_epochs : int or None
        The last epoch of a `fit` that would go on; None: no limit.

    Raises
    ------
    TypeError, ValueError
        If it is no positive integer.
    """
    _set(_EPOCHS, max_epochs, "max_epochs")


def max_steps_per_epoch() -> int | None:
    """Return the most steps of a pass over data, or None.

    Returns
    -------
    int or None
        What `set_max_steps_per_epoch` was given, else the environment's
        ``KERAS_MAX_STEPS_PER_EPOCH``.

    Raises
    ------
    ValueError
        If the environment's variable is no positive integer.
    """
    return _limit(_STEPS)


def set_max_steps_per_epoch(max_steps_per_epoch: int | None) -> None:
    """Limit the steps of epochs, validations, evaluations and predictions.

    Without ``steps_per_epoch`` each epoch then reads the beginning of the data.

    Parameters
    ----------
    max_steps_per_epoch : int or None
        The most steps; None: no limit.

    Raises
    ------
    TypeError, ValueError
        If it is no positive integer.
    """
    _set(_STEPS, max_steps_per_epoch, "max_steps_per_epoch")


def limited(given: int, most: int | None, name: str) -> int:
    """Return a number, or a lower limit after a warning."""
    if most is None or given <= most:
        return given
    warnings.warn(
        f"{name} is {most} and not {given}: nn.config.set_max_{name} or the "
        f"environment's KERAS_MAX_{name.upper()} limits it",
        stacklevel=outside(),
    )
    return most
