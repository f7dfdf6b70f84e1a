"""Rings in the memory of several devices, which batches take in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from memcfg.data.engine._batch_blocks import Ring


class DeviceRings:
    """A ring for each device; the first batch lies in that of the first, and so on.

    To a thread that fills it, it is one ring, of which each has an equal part.
    """

    def __init__(self, rings: Sequence[Ring]) -> None:
        self._rings = rings
        self._turn = 0

    @property
    def _next(self) -> Ring:
        return self._rings[self._turn]

    @property
    def block_bytes(self) -> int:
        """Bytes of the largest block; 0: not known yet."""
        return max(each.block_bytes for each in self._rings)

    @property
    def max_waiting(self) -> float:
        """The number of waiting batches that the allowed blocks can hold."""
        return len(self._rings) * min(each.max_waiting for each in self._rings)

    @property
    def max_bytes(self) -> int:
        """Bytes of all blocks, so far."""
        return sum(each.max_bytes for each in self._rings)

    @property
    def fits(self) -> int:
        """Waiting batches that fit, after a failed allocation."""
        return len(self._rings) * self._next.fits

    def fit(self, buffer_size: int) -> None:
        """Allocate the next ring's blocks; see `Ring.fit`."""
        self._next.fit(-(-buffer_size // len(self._rings)))

    def destroy(self) -> None:
        """Release the blocks of all rings."""
        for each in self._rings:
            each.destroy()

    def __enter__(self) -> Self:
        self._next.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._next.__exit__(kind, error, trace)
        self._turn = (self._turn + 1) % len(self._rings)
