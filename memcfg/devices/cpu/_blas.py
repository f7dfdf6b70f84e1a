"""The kernels of a CPU without oneDNN: memcfg's own, and products by NumPy's BLAS.

See docs/decisions/0040-products-without-onednn.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import (
    CallbackKernel,
    Kernel,
    get_num_threads,
    has_kernel,
    needs_library,
)
from memcfg.devices._algorithm_times import AlgorithmTimes, asks_for_times
from memcfg.devices.cpu._blas_products import PRODUCTS, Product, product_of
from memcfg.devices.cpu._native import NativeKernel, kernel_numbers
from memcfg.devices.cpu._processor import processor_facts
from memcfg.devices.cpu._reference import ReferenceKernels, arrays_at
from memcfg.devices.cpu._run_seconds import measure_instruction
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg.devices._contract import OperandSpec, UnboundKernel
    from memcfg.memory import Pool


@dataclass(frozen=True)
class _ProductKernel:
    """A product of NumPy's BLAS, with an op's shapes."""

    product: Product
    inputs: tuple[OperandSpec, ...]
    outputs: tuple[OperandSpec, ...]
    algorithm: str = "blas"

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs."""
        return 4 * self.product.scratch

    @property
    def kernel(self) -> None:
        """Return None, as it runs Python code."""

    def instruction(self) -> CallbackKernel:
        """Return a callback that takes the addresses of operands and scratch."""
        return CallbackKernel(
            _Operands(self),
            [spec.nbytes for spec in self.inputs],
            [spec.nbytes for spec in self.outputs],
            self.scratch_bytes,
        )

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once on operands anywhere."""
        _Operands(self)(*addresses, *([scratch] if self.scratch_bytes else []))

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run in memory of a pool; 0 if that has too little."""
        sizes = [spec.nbytes for spec in (*self.inputs, *self.outputs)]
        return measure_instruction(self.instruction(), sizes, self.scratch_bytes, pool)


@dataclass(frozen=True)
class _Floats:
    """An array of scratch, as an operand."""

    shape: tuple[int, ...]
    nbytes: int
    dtype: str = "float32"


class _Operands:
    """A product and the arrays at the addresses of its last run."""

    __slots__ = ("_addresses", "_arrays", "_count", "_kernel", "_specs")

    def __init__(self, kernel: _ProductKernel) -> None:
        self._kernel = kernel
        self._count = len(kernel.inputs)
        floats = kernel.product.scratch
        scratch = (_Floats((floats,), 4 * floats),) if floats else ()
        self._specs = (*kernel.inputs, *kernel.outputs, *scratch)
        self._addresses: tuple[int, ...] | None = None
        self._arrays: list[NDArray[Any]] = []

    def __call__(self, *addresses: int) -> None:
        """Run once."""
        if addresses != self._addresses:
            self._arrays = arrays_at(self._specs, addresses)
            self._addresses = addresses
        inputs, rest = self._arrays[: self._count], self._arrays[self._count :]
        # As in C++, a NaN or an overflow is a value; the guard of the loss reports it.
        with np.errstate(all="ignore"):
            self._kernel.product.run(inputs, rest, rest[-1])


class BlasKernels:
    """Products by NumPy's BLAS, all other ops by memcfg's kernels or in plain NumPy.

    Parameters
    ----------
    pool : Pool or None, default None
        The pool in which kernels are measured; None to measure nothing.
    """

    name = "blas"

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool
        self._measures = asks_for_times()
        self._times = AlgorithmTimes()
        self._reference = ReferenceKernels(pool)

    def has(self, op_type: str) -> bool:
        """Return whether a type has a kernel other than its definition."""
        own = has_kernel(op_type) and not needs_library(op_type)
        return own or op_type in PRODUCTS

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the op's kernel, then its definition, which is not measured.

        Seconds are measured if ``MEMCFG_MEASURE`` is set.
        """
        op = (op_type, attributes, inputs, outputs)
        if self._measures:
            return self.measure(*op)
        made, rows = self._make(*op), self._reference.algorithms(*op)
        if made is None:
            return rows
        return [(made.algorithm, made.scratch_bytes, 0.0), *rows]

    def measure(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the algorithms as `algorithms` does, with the first one's seconds."""
        op = (op_type, attributes, inputs, outputs)
        made = self._make(*op)
        if made is None:
            return self._reference.measure(*op)
        rows = self._reference.algorithms(*op)
        if self._pool is None:
            return [(made.algorithm, made.scratch_bytes, 0.0), *rows]
        machine = (processor_facts(), f"NumPy {np.__version__}", str(get_num_threads()))
        return [*self._times.rows(op, [made], self._pool, machine), *rows]

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> UnboundKernel:
        """Make the kernel of one op; KernelError if it does not accept the operands."""
        op = (op_type, attributes, inputs, outputs)
        made = self._make(*op, algorithm) if algorithm != self._reference.name else None
        return made or self._reference.make(*op, algorithm)

    def _make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> NativeKernel | _ProductKernel | None:
        """Make a kernel that is not an op's definition; None if there is none."""
        product = product_of(op_type, attributes, inputs, outputs)
        if product is not None:
            if algorithm not in (None, self.name):
                raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
            return _ProductKernel(product, tuple(inputs), tuple(outputs))
        numbers = kernel_numbers(op_type, attributes)
        if numbers is None or needs_library(op_type):
            return None
        return NativeKernel(Kernel(op_type, numbers, inputs, outputs, None, algorithm))

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> None:
        """Return None, as BLAS reads matrices as they are."""
