"""The error for a step that has no plan within its limit."""

from __future__ import annotations

import torch

from memcfg.errors import InfeasiblePlanError

__all__ = ["InfeasibleStepError"]

# by which accelerate, transformers and Lightning recognise that a smaller batch may fit
_WORDS = (
    "For helpers that try a smaller batch: CUDA out of memory. DefaultCPUAllocator: "
    "can't allocate memory."
)


class InfeasibleStepError(InfeasiblePlanError, torch.OutOfMemoryError):  # type: ignore[misc]
    """No plan of a step fits the limit, and nothing of the step has run.

    It is an `InfeasiblePlanError`, whose attributes it has, and PyTorch's own error for
    a lack of memory. Its last line has the words by which helpers such as accelerate's
    ``find_executable_batch_size`` recognize that a smaller batch may fit.

    Parameters
    ----------
    message : str
        What was being planned.
    **fields
        The attributes of `InfeasiblePlanError`.
    """

    __module__ = "memcfg.torch"  # which users name

    def _text(self) -> str:
        return f"{super()._text()}\n{_WORDS}"
