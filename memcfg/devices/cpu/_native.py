"""The kernels of the native core, on oneDNN or our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg import ops
from memcfg._core import Kernel, OneDNN
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.errors import GraphError, KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from memcfg.devices.cpu._contract import BoundlessKernel, OperandSpec

__all__ = ["NativeKernels"]


@dataclass(frozen=True)
class _NativeKernel:
    """A native kernel; addresses come with the program's instruction."""

    kernel: Kernel

    @property
    def algorithm(self) -> str:
        """Whose it is."""
        return self.kernel.algorithm

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return self.kernel.scratch_bytes

    def bind(
        self,
        arena_view: NDArray[np.uint8],
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
    ) -> Kernel:
        """Return the kernel: `Program.compute` is given the offsets."""
        del arena_view, input_offsets, output_offsets
        return self.kernel

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once on operands anywhere."""
        self.kernel.run(addresses, scratch)


class NativeKernels:
    """Convolutions and matrix products on oneDNN, all else on our own kernels.

    Parameters
    ----------
    library : OneDNN
        The loaded library.
    """

    name = "onednn"

    def __init__(self, library: OneDNN) -> None:
        self._library = library

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> BoundlessKernel:
        """Make the kernel of one op; KernelError if it cannot take the operands.

        A user's op without a native kernel runs as it is meant, in NumPy.
        """
        try:
            kind = ops.op_type(op_type)
        except GraphError:
            raise KernelError(f"there is no kernel of type {op_type!r}") from None
        try:
            numbers = kind.kernel_attributes(attributes)
        except GraphError as error:
            raise KernelError(f"kernel {op_type!r}: {error}") from None
        try:
            kernel = Kernel(op_type, numbers, inputs, outputs, self._library)
        except KernelError as error:
            if str(error) != f"there is no kernel of type {op_type!r}":
                raise
            return ReferenceKernels().make(op_type, attributes, inputs, outputs)
        return _NativeKernel(kernel)
