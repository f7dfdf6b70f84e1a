"""Keras's settings of a program, as `keras.config` has them.

`memcfg.config` has those of devices and their memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.config import dtype_policy, set_dtype_policy
from memcfg.nn.backend import (
    backend,
    epsilon,
    floatx,
    image_data_format,
    set_epsilon,
    set_floatx,
    set_image_data_format,
)
from memcfg.nn.training.progress._progress import (
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)

__all__ = [
    "backend",
    "disable_interactive_logging",
    "disable_traceback_filtering",
    "dtype_policy",
    "enable_interactive_logging",
    "epsilon",
    "floatx",
    "image_data_format",
    "is_interactive_logging_enabled",
    "is_nnx_enabled",
    "is_traceback_filtering_enabled",
    "set_dtype_policy",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
]

_REASONS = {
    "set_backend": "there is one backend",
    "enable_unsafe_deserialization": "nothing in a file is executed",
    "max_epochs": "pass epochs to fit",
    "max_steps_per_epoch": "pass steps_per_epoch to fit",
    "set_max_epochs": "pass epochs to fit",
    "set_max_steps_per_epoch": "pass steps_per_epoch to fit",
}

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = _REASONS.get(name)
        if why is None and "flash" in name:
            why = "attention is always computed in the same way"
        if why is None and "traceback" in name:
            why = "errors have their whole traceback"
        refuse(__name__, name, "" if why is None else f": {why}")


def disable_traceback_filtering() -> None:
    """Do nothing: errors have their whole traceback."""


def is_traceback_filtering_enabled() -> bool:
    """Return False, since errors have their whole traceback.

    Returns
    -------
    bool
        False.
    """
    return False


def is_nnx_enabled() -> bool:
    """Return False, since NNX is of Keras's backend for JAX.

    Returns
    -------
    bool
        False.
    """
    return False
