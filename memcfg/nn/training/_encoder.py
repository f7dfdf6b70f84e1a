"""What decides how a rank encodes its gradients."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Encoder"]


class Encoder(Protocol):
    """The scalar inputs of the steps of one rank, whose gradients are encoded."""

    def scalars(self) -> dict[str, float]:
        """Return ``threshold`` and ``residual_limit`` of the next step."""

    def advance(self) -> None:
        """End a step that has changed the weights."""
