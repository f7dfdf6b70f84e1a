"""Launches of generated kernels, bound to the addresses of their operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg._core import CudaFunction, CudaStream
    from memcfg.devices.cuda._sources import CudaSource, Launch


class Bound(Protocol):
    """GPU work bound to the addresses of its operands."""

    def issue(self, stream: CudaStream) -> None:
        """Enqueue the work on a stream."""


@dataclass(slots=True)
class BoundLaunch(Bound):
    """A launch bound to addresses; its function is set when it is loaded."""

    text: str
    launch: Launch
    arguments: bytes
    offsets: tuple[int, ...]
    function: CudaFunction | None = None

    def issue(self, stream: CudaStream) -> None:
        """Enqueue the work on a stream."""
        assert self.function is not None
        launch = self.launch
        stream.launch(
            self.function,
            launch.grid,
            launch.block,
            launch.shared_bytes,
            self.arguments,
            self.offsets,
        )


def bind_source(
    source: CudaSource, addresses: Sequence[int], scratch: int
) -> list[BoundLaunch]:
    """Return a source's launches, bound to addresses of operands and scratch."""
    return [
        BoundLaunch(source.text, launch, *launch.pack(addresses, scratch))
        for launch in source.launches
    ]
