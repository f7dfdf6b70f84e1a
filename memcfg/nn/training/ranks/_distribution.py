"""What runs the steps of a model on several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._tracing import ProgramKey

__all__ = ["Distribution"]


class Distribution(Protocol):
    """Steps of training and evaluation that several sessions run together."""

    def require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load what runs batches, as `Session.require` does."""

    def step(
        self, kind: str, batch: Batch, optimizer: Optimizer | None, guard: bool
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run a step on a batch and return what `Session.step` does."""
