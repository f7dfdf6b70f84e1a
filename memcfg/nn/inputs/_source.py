"""What models read, whatever it is: passes over batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from memcfg.data import PipelineReport
    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.layers._layer import Shape

__all__ = ["Pass", "Source", "Target"]


class Target(NamedTuple):
    """What a model wants of a batch."""

    shape: Shape
    classes: int | None


class Pass(Protocol):
    """One pass over data: an iterator over batches that is closed at the end."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> Batch:
        """Return the next batch."""

    def close(self) -> None:
        """End the pass: threads end, and memory is freed."""


class Source(Protocol):
    """Data as a model reads it."""

    @property
    def steps(self) -> int | None:
        """How many batches a pass has; None where that is not known."""

    @property
    def endless(self) -> bool:
        """Whether a pass has no end."""

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""

    @property
    def sample_shape(self) -> Shape | None:
        """The shape of a sample; None where it is not known yet."""

    @property
    def sizes(self) -> list[int]:
        """The batch sizes that are known, that of a full batch first."""

    def count(self, steps: int | None) -> int | None:
        """Count the samples of a pass."""

    def promised(self, target: Target) -> int:
        """Estimate what a pass takes of the device beside the model."""

    def buffer_that_fits(self, target: Target, missing: int) -> int | None:
        """Tell how many batches could be read ahead with less memory."""

    def peek(self) -> None:
        """Begin the first pass, so that shape and a batch size are known."""

    def expect(self, target: Target) -> None:
        """Say what the model wants; whatever is known to differ is an error."""

    def begin(self) -> Pass:
        """Begin a pass; the one before is closed."""

    def report(self) -> PipelineReport | None:
        """Tell what the steps chose that made the batches of the last closed pass."""

    def close(self) -> None:
        """Close what `peek` began, if nobody took it over."""
