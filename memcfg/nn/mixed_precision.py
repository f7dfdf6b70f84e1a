"""Keras's names for computing in bfloat16, which `memcfg.config` has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.config import DTypePolicy, dtype_policy, set_dtype_policy

__all__ = [
    "DTypePolicy",
    "Policy",
    "dtype_policy",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
]

Policy = DTypePolicy
global_policy, set_global_policy = dtype_policy, set_dtype_policy

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = ": gradients are float32: pass the inner optimizer alone"
        refuse(__name__, name, why if "LossScale" in name else "")
