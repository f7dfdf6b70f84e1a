"""What the executor asks of a program, compiled or not, and of what it is made from.

Owns two protocols. Refuses to know how a program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from memcfg import plan as planning
    from memcfg._core.engine import Arena, Counter, ScratchFile
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.runtime._report import MemoryReport

__all__ = ["Recipe", "Runnable"]


class Runnable(Protocol):
    """A program of a model, its state at the front of the model's arena."""

    recipe: Recipe | None
    """What it was made from; set by who made it."""

    @property
    def graph(self) -> Graph:
        """The graph, with the kernels' scratch."""

    def view(self, name: str, *, at_end: bool) -> npt.NDArray[Any]:
        """Return a tensor's room, where it lies before or after a run.

        An input whose room is asked for before a run is read there, not where `bind`
        said.
        """

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Read an input where an array lies, until `finish`."""

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once. What it raises ends the step: nothing is bound then."""

    def finish(self) -> None:
        """Give back what the last run made, if it has bytes of its own."""

    def give_back(self) -> None:
        """Give back what was kept for the next run, too."""

    def close(self) -> None:
        """Let go of the arena; the program cannot be used again.

        Errors that somebody keeps refer to the program by their frames.
        """

    def report(
        self, name: str, device: Device, arena: Arena, *, verify: bool
    ) -> MemoryReport:
        """Tell what a step takes."""


class Recipe(Protocol):
    """What a program is made from."""

    @property
    def source(self) -> Graph:
        """The graph as it was traced."""

    @property
    def graph(self) -> Graph:
        """The graph, with the kernels' scratch."""

    @property
    def plan(self) -> planning.Plan | None:
        """The plan; None for a program that runs op by op."""

    @property
    def arena_bytes(self) -> int:
        """What the program takes of the arena."""

    @property
    def beside_bytes(self) -> int:
        """What the program takes of the pool beside the arena, at most."""

    @property
    def tier_bytes(self) -> Mapping[str, int]:
        """What the program takes of each tier."""

    def program(
        self,
        arena: Arena,
        tiers: Mapping[str, Arena | ScratchFile],
        device: Device,
        owner: str,
    ) -> Runnable:
        """Make the program."""
