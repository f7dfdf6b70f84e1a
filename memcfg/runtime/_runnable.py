"""What the executor asks of a program, compiled or not.

Owns one protocol. Refuses to know how a program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt

    from memcfg._core.engine import Arena, Counter
    from memcfg.devices import Device
    from memcfg.graph import Graph
    from memcfg.runtime._recipes import Recipe
    from memcfg.runtime._report import MemoryReport

__all__ = ["Runnable"]


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

        Parameters
        ----------
        name : str
            The tensor's name.
        at_end : bool
            After the run.

        Returns
        -------
        ndarray
            A view of its bytes.

        Raises
        ------
        KeyError
            If the tensor has no room then.
        ResourceExhaustedError
            If there is no room for an input; nothing was taken.
        """

    def bind(self, name: str, array: npt.NDArray[Any]) -> bool:
        """Read an input where an array lies, until `finish`.

        Parameters
        ----------
        name : str
            The input's name.
        array : ndarray
            Its value; kept alive, and never written.

        Returns
        -------
        bool
            False if it must be copied into the input's room.

        Raises
        ------
        KeyError
            If there is no tensor of that name.
        ResourceExhaustedError
            If there is no room for an input; nothing was taken.
        """

    def run(self, *, guard: bool, counter: Counter | None = None) -> bool:
        """Run once. What it raises ends the step: nothing is bound then.

        Parameters
        ----------
        guard : bool
            Stop at a loss that is not finite.
        counter : Counter, optional
            Advanced by a run to the end; nothing comes between the two.

        Returns
        -------
        bool
            Whether it ran to the end.
        """

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
        """Tell what a step takes.

        Parameters
        ----------
        name : str
            The program's name.
        device : Device
            Where it runs.
        arena : Arena
            The model's arena.
        verify : bool
            Whether to run it on made-up input and measure; state is put back.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline.
        """
