"""The kernels of a CPU without oneDNN: memcfg's own, and products by NumPy's BLAS.

See docs/decisions/0040-products-without-onednn.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import (
    Kernel,
    get_num_threads,
    has_kernel,
    needs_library,
)
from memcfg.devices._algorithm_times import AlgorithmTimes, asks_for_times
from memcfg.devices.cpu._array_kernel import ArrayKernel
from memcfg.devices.cpu._blas_products import PRODUCTS, product_of
from memcfg.devices.cpu._native import NativeKernel, kernel_numbers
from memcfg.devices.cpu._processor import processor_facts
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec, UnboundKernel
    from memcfg.memory import Pool


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
    ) -> NativeKernel | ArrayKernel | None:
        """Make a kernel that is not an op's definition; None if there is none."""
        product = product_of(op_type, attributes, inputs, outputs)
        if product is not None:
            if algorithm not in (None, self.name):
                raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
            return ArrayKernel(
                product.run,
                tuple(inputs),
                tuple(outputs),
                self.name,
                4 * product.scratch,
            )
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
