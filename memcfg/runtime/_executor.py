"""Steps of one model's programs: inputs in, a run, outputs out.

Owns what is done with loaded programs. Refuses planning and memory, which come with
loading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcfg.runtime._loaded import Loaded

if TYPE_CHECKING:
    from memcfg._core import Counter
    from memcfg.runtime._report import MemoryReport

__all__ = ["Executor"]

_Array = npt.NDArray[np.generic]


class Executor(Loaded):
    """Run the programs of one model in one arena of a device.

    Parameters
    ----------
    device : Device
        Its pool pays for the arena, its kernels compute. On a simulated one programs
        can be planned only.
    name : str
        The owner's name in error messages and listings.
    lock : Lock, optional
        The owner's; None makes one.

    Notes
    -----
    All programs work in one arena, so only one may be at work. Every method has a turn
    of `lock`; who writes inputs, runs and reads outputs as one act has it from the
    first to the last.
    """

    def feed(self, program: str, tensor: str) -> _Array:
        """Return an input's room, to be written before each run.

        The program reads the input there, not where `bind` said.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of an input.

        Returns
        -------
        ndarray
            A view of the program's memory with the input's shape and dtype.

        Raises
        ------
        KeyError
            If there is no such program or input.
        ResourceExhaustedError
            If the program runs op by op, and there is no room for the input.
        """
        with self.lock.turn():
            return self.prepare(program).view(tensor, at_end=False)

    def bind(self, program: str, tensor: str, array: _Array) -> bool:
        """Have a program read an input where an array lies: nothing is copied.

        It holds until `finish`, the next `bind` or `feed` of that input, or a run that
        fails. The room stays taken: a step's peak is the same.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of an input.
        array : ndarray
            Its value. It is kept alive, and never written; who changes it before the
            end of the run changes what the run reads.

        Returns
        -------
        bool
            False if the array must be copied into the room that `feed` returns: unless
            it has the input's shape and dtype, is C-contiguous and begins at a multiple
            of 64, and no op needs the input in the arena. The reference kernels do.

        Raises
        ------
        KeyError
            If there is no such program or tensor.
        ResourceExhaustedError
            If the program runs op by op, and there is no room for the input.
        """
        with self.lock.turn():
            return self.prepare(program).bind(tensor, array)

    def run(
        self, program: str, *, guard: bool = False, counter: Counter | None = None
    ) -> bool:
        """Run a program once, when the process runs fewer programs than it may.

        Parameters
        ----------
        program : str
            A loaded program.
        guard : bool, default False
            Stop at a loss that is NaN or infinite, before any state has changed.
        counter : Counter, optional
            Advanced by a run to the end; nothing comes between the two.

        Returns
        -------
        bool
            True if it ran to the end, False if the guard stopped it.

        Raises
        ------
        KeyError
            If there is no such program.
        KernelError
            If a kernel failed.
        ResourceExhaustedError
            If the program runs op by op, and there is no room; the state is as before.
        """
        with self.lock.turn():
            return self.prepare(program).run(guard=guard, counter=counter)

    def fetch(self, program: str, tensor: str) -> _Array:
        """Return a kept tensor's room.

        Parameters
        ----------
        program : str
            A loaded program.
        tensor : str
            The name of a tensor in the graph's `keep`.

        Returns
        -------
        ndarray
            A view, valid until `finish` or the next run.

        Raises
        ------
        KeyError
            If there is no such program, or the tensor is not kept.
        """
        with self.lock.turn():
            return self._program(program).view(tensor, at_end=True)

    def finish(self, program: str) -> None:
        """End a step: what was to be fetched has been fetched.

        Arrays that were bound are let go. A program that runs op by op gives its rooms
        back.

        Parameters
        ----------
        program : str
            A program; nothing is done for one that is not loaded.
        """
        with self.lock.turn():
            if program in self._programs:
                self._programs[program].finish()

    def memory_report(self, program: str, *, verify: bool = False) -> MemoryReport:
        """Tell what a program's step takes.

        Parameters
        ----------
        program : str
            A loaded program.
        verify : bool, default False
            Measure: run the program on made-up input over a canary and look for the
            highest byte that changed, scratch counted as handed over; or op by op,
            while the pool's books are read. State is put back.

        Returns
        -------
        MemoryReport
            Peak, bytes by role, timeline.

        Raises
        ------
        KeyError
            If there is no such program.
        """
        with self.lock.turn():
            found = self.prepare(program) if verify else self._program(program)
            arena = self._arena.get()
            return found.report(program, self.device, arena, verify=verify)
