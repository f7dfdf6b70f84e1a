"""The error for a tensor that does not fit the limit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from memcfg.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OutOfMemoryError"]

_NUMBER = re.compile(r"\[memcfg refusal (\d+)\]")  # as in allocator.cpp
_HINT = (
    "Drop tensors, lower the batch size, or raise the limit with "
    "memcfg.torch.limit_cpu."
)


class OutOfMemoryError(ResourceExhaustedError, torch.OutOfMemoryError):  # type: ignore[misc]
    """A tensor does not fit the limit of `limit_cpu` or `saved_tensors`.

    Nothing was allocated. The error is both a `ResourceExhaustedError`, whose
    attributes it has, and PyTorch's own error, so that code written for PyTorch handles
    it. Its text contains the words by which helpers such as accelerate's
    ``find_executable_batch_size`` recognize that a smaller batch may fit. PyTorch
    constructs it from a text that names the refusal; if another library passes the text
    on, it arrives as a RuntimeError.

    Parameters
    ----------
    message : str
        The text, or a sentence without numbers on what was being done.
    **fields
        The attributes of `ResourceExhaustedError`. Without any, they are those of the
        refusal that the text names, if it is a recent one of this process.
    """

    __module__ = "memcfg.torch"  # which users name
    refusal: Callable[[int], dict[str, Any] | None] | None = None  # by its number

    def __init__(self, message: str, **fields: Any) -> None:
        named = None if fields else _NUMBER.search(message)
        if named is not None and self.refusal is not None:
            reason = self.refusal(int(named[1]))
            if reason is not None:
                message = message.partition("\n")[0]
                fields = reason | {"hint": _HINT}
        super().__init__(message, **fields)

    def _text(self) -> str:
        return super()._text() if self.requested_bytes else self.message
