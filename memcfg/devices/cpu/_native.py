"""The kernels of the native core, on oneDNN or our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg import ops
from memcfg._core import Kernel, OneDNN, has_kernel
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.errors import GraphError, KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec, UnboundKernel


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

    def instruction(self) -> Kernel:
        """Return the kernel."""
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
        self._reference = ReferenceKernels()

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List our own, or oneDNN's, and then NumPy's."""
        own = self.make(op_type, attributes, inputs, outputs)
        found = [(own.algorithm, own.scratch_bytes, 0.0)]
        others = self._reference.algorithms(op_type, attributes, inputs, outputs)
        return found + [row for row in others if row not in found]

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> UnboundKernel:
        """Make the kernel of one op; KernelError if it cannot take the operands.

        A user's op without a native kernel runs as it is meant, in NumPy.
        """
        if algorithm == self._reference.name:
            return self._reference.make(op_type, attributes, inputs, outputs)
        found = self._default(op_type, attributes, inputs, outputs)
        if algorithm not in (None, found.algorithm):
            raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
        return found

    def _default(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> UnboundKernel:
        try:
            kind = ops.op_type(op_type)
        except GraphError:
            raise KernelError(f"there is no kernel of type {op_type!r}") from None
        if kind.formula is None and not has_kernel(op_type):
            return self._reference.make(op_type, attributes, inputs, outputs)
        try:
            numbers = kind.kernel_attributes(attributes)
        except GraphError as error:
            raise KernelError(f"kernel {op_type!r}: {error}") from None
        return _NativeKernel(Kernel(op_type, numbers, inputs, outputs, self._library))
