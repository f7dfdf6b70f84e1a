"""What a table of kernels promises, whichever library is behind it.

Owns the vocabulary between kernels and those who bind them to memory. Refuses to
know any library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg._core import CallbackKernel, Kernel

__all__ = ["BoundlessKernel", "KernelTable", "OperandSpec"]


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """Shape and type of one operand of an op.

    Parameters
    ----------
    shape : tuple of int
        The length of each dimension.
    dtype : str
        NumPy's name of the element type, such as ``"float32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


class BoundlessKernel(Protocol):
    """An op's kernel for given shapes and attributes, not yet bound to addresses."""

    @property
    def algorithm(self) -> str:
        """Whose it is: ``"onednn"``, ``"native"`` or ``"reference"``."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs, provided by the caller."""

    @property
    def kernel(self) -> Kernel | None:
        """The native kernel that `run` runs; None where it runs Python."""

    def bind(
        self,
        arena_view: NDArray[np.uint8],
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
    ) -> Kernel | CallbackKernel:
        """Return an instruction for a program.

        Parameters
        ----------
        arena_view : ndarray of uint8
            The bytes of the arena.
        input_offsets, output_offsets : sequence of int
            Bytes from the arena's base to each operand.

        Returns
        -------
        Kernel or CallbackKernel
            What `Program.compute` takes, to be given the same offsets.
        """

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once, outside of any program.

        Parameters
        ----------
        addresses : sequence of int
            Where the inputs, then the outputs lie; the caller vouches for them.
        scratch : int
            Where `scratch_bytes` of scratch lie; 0 if there are none.

        Raises
        ------
        KernelError
            If the kernel failed.
        """


class KernelTable(Protocol):
    """Makes a kernel for every type of op."""

    @property
    def name(self) -> str:
        """Which kernels: ``"onednn"`` or ``"reference"``."""

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> BoundlessKernel:
        """Make the kernel of one op.

        Parameters
        ----------
        op_type : str
            The op's type, such as ``"conv2d"``.
        attributes : mapping
            The op's attributes.
        inputs, outputs : sequence of OperandSpec
            Its operands.

        Returns
        -------
        BoundlessKernel
            The kernel.

        Raises
        ------
        KernelError
            If the type is unknown or has no kernel for such operands.
        """
