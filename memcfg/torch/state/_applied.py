"""Gradients that the optimizer has applied while backward ran, and freed."""

from __future__ import annotations

from typing import Any, Self

import torch

_HARMLESS = {
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.zero_.default,
}


class AppliedGradient(torch.Tensor):  # type: ignore[misc]
    """Stands for a gradient without data; whoever reads it gets an error in words."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        return made

    def __repr__(self, **_: Any) -> str:
        return f"AppliedGradient(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _types: Any, args: Any = (), _kwargs: Any = None
    ) -> Any:
        if func in _HARMLESS:
            return args[0]
        raise RuntimeError(
            "the optimizer has applied this gradient while backward ran, and it was "
            "freed, so that it can be neither clipped, scaled nor read: take "
            "'step_in_backward' out of budget(..., offload=...)"
        )


def is_applied(gradient: Any) -> bool:
    """Return whether a gradient was applied in backward."""
    return type(gradient) is AppliedGradient
