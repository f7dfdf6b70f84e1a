"""Keras's settings of a program, as `keras.config` has them.

`memcfg.config` has those of devices and their memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg._traceback_filter import (
    disable_traceback_filtering,
    enable_traceback_filtering,
    is_traceback_filtering_enabled,
)
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
from memcfg.nn.inputs._run_limits import (
    max_epochs,
    max_steps_per_epoch,
    set_max_epochs,
    set_max_steps_per_epoch,
)
from memcfg.nn.layers._flash_setting import (
    disable_flash_attention,
    enable_flash_attention,
    is_flash_attention_enabled,
)
from memcfg.nn.training.progress._progress import (
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)

__all__ = [
    "backend",
    "disable_flash_attention",
    "disable_interactive_logging",
    "disable_traceback_filtering",
    "dtype_policy",
    "enable_flash_attention",
    "enable_interactive_logging",
    "enable_traceback_filtering",
    "epsilon",
    "floatx",
    "image_data_format",
    "is_flash_attention_enabled",
    "is_interactive_logging_enabled",
    "is_nnx_enabled",
    "is_traceback_filtering_enabled",
    "max_epochs",
    "max_steps_per_epoch",
    "set_backend",
    "set_dtype_policy",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "set_max_epochs",
    "set_max_steps_per_epoch",
]

_REASONS = {
    "enable_unsafe_deserialization": "nothing in a file is executed",
}

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = _REASONS.get(name)
        refuse(__name__, name, "" if why is None else f": {why}")


def set_backend(backend: str) -> None:
    """Check the name of the backend, of which there is one.

    Parameters
    ----------
    backend : str
        ``"memcfg"``.

    Raises
    ------
    ValueError
        For any other name.
    """
    if backend != "memcfg":
        raise ValueError(
            f"memcfg has no backend {backend!r}: use Keras with its PyTorch backend, "
            "whose models memcfg.torch.budget trains within a limit"
        )


def is_nnx_enabled() -> bool:
    """Return False, since NNX is of Keras's backend for JAX.

    Returns
    -------
    bool
        False.
    """
    return False
