"""Whether libraries may compute in TF32."""

from __future__ import annotations

import os

from memcfg.errors import KernelError

_VARIABLE = "MEMCFG_CUDA_TF32"


def asks_for_tf32() -> bool:
    """Tell whether ``MEMCFG_CUDA_TF32`` asks for it; KernelError if it says neither."""
    value = os.environ.get(_VARIABLE, "") or "0"
    if value not in ("0", "1"):
        raise KernelError(f"{_VARIABLE} is {value!r}; it takes 0 or 1")
    return value == "1"
