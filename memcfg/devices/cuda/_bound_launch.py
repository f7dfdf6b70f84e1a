"""Launches of generated kernels on operands whose addresses are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg._core import CudaFunction, CudaStream
    from memcfg.devices.cuda._sources import CudaSource, Launch


class Bound(Protocol):
    """Work on operands whose addresses are known."""

    def issue(self, stream: CudaStream) -> None:
        """Put it on a stream."""


@dataclass(slots=True)
class BoundLaunch(Bound):
    """A launch with the addresses of its operands; its function comes when loaded."""

    text: str
    launch: Launch
    arguments: bytes
    offsets: tuple[int, ...]
    function: CudaFunction | None = None

    def issue(self, stream: CudaStream) -> None:
        """Put it on a stream."""
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
    """Return a source's launches on operands at these addresses."""
    return [
        BoundLaunch(source.text, launch, *launch.pack(addresses, scratch))
        for launch in source.launches
    ]
