"""Environment variables that are 0 or 1."""

from __future__ import annotations

import os

from memcfg.errors import KernelError


def switched_on(variable: str, *, default: bool = False) -> bool:
    """Return whether a variable is 1; raise KernelError unless it is 0, 1 or empty."""
    value = os.environ.get(variable, "") or str(int(default))
    if value not in ("0", "1"):
        raise KernelError(f"{variable} is {value!r}; it takes 0 or 1")
    return value == "1"


def asks_for_tf32() -> bool:
    """Return whether libraries may compute in TF32; KernelError as `switched_on`."""
    return switched_on("MEMCFG_CUDA_TF32")
