"""The NumPy reference as a table of kernels, each of which runs an op's definition.

They are the oracle of all other kernels, and therefore simple. Their temporaries are on
the heap, outside of the pool; every other promise holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import ops
from memcfg._core import get_num_threads
from memcfg.devices._algorithm_times import AlgorithmTimes
from memcfg.devices.cpu._array_kernel import ArrayKernel
from memcfg.devices.cpu._processor import processor_facts
from memcfg.errors import GraphError, KernelError
from memcfg.ops._dtypes import run_meaning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg.devices._contract import OperandSpec
    from memcfg.memory import Pool


class ReferenceKernels:
    """All ops in plain NumPy: slow, simple, and the oracle of other kernels.

    Parameters
    ----------
    pool : Pool or None, default None
        The pool in which kernels are measured; None to measure nothing.
    """

    name = "reference"

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool
        self._times = AlgorithmTimes()

    def has(self, op_type: str) -> bool:
        """Return False, as all kernels here are definitions."""
        del op_type
        return False

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the only algorithm."""
        made = self.make(op_type, attributes, inputs, outputs)
        return [(made.algorithm, made.scratch_bytes, 0.0)]

    def measure(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the only algorithm; seconds are 0 if the pool has too little memory."""
        op = (op_type, attributes, inputs, outputs)
        if self._pool is None:
            return self.algorithms(*op)
        machine = (processor_facts(), f"NumPy {np.__version__}", str(get_num_threads()))
        return self._times.rows(op, [self.make(*op)], self._pool, machine)

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> ArrayKernel:
        """Make the kernel of one op; raise KernelError for an unknown type."""
        if algorithm not in (None, self.name):
            raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
        try:
            meaning = ops.op_type(op_type).numpy
        except GraphError:
            raise KernelError(f"there is no kernel of type {op_type!r}") from None
        held = dict(attributes)
        dtypes = tuple(spec.dtype for spec in (*inputs, *outputs))

        def run(
            inputs: list[NDArray[Any]], outputs: list[NDArray[Any]], _: NDArray[Any]
        ) -> None:
            run_meaning(meaning, held, inputs, outputs, dtypes)

        return ArrayKernel(run, tuple(inputs), tuple(outputs), self.name)

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> None:
        """Return None, as NumPy reads arrays as they are."""
