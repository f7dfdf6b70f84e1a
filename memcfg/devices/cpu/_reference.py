"""The NumPy reference as a table of kernels, each of which runs an op's definition.

They are the oracle of all other kernels, and therefore simple. Their temporaries are on
the heap, outside of the pool; every other promise holds.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import ops
from memcfg._core import CallbackKernel, get_num_threads
from memcfg.devices._algorithm_times import AlgorithmTimes
from memcfg.devices.cpu._processor import processor_facts
from memcfg.devices.cpu._run_seconds import measure_instruction
from memcfg.errors import GraphError, KernelError
from memcfg.ops._dtypes import array_dtype, run_meaning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg.devices._contract import OperandSpec
    from memcfg.memory import Pool
    from memcfg.ops._op_type import Meaning


@dataclass(frozen=True)
class _ReferenceKernel:
    """The definition of an op type, with an op's attributes and shapes."""

    function: Meaning
    attributes: Mapping[str, Any]
    inputs: tuple[OperandSpec, ...]
    outputs: tuple[OperandSpec, ...]
    algorithm: str = "reference"
    scratch_bytes: int = 0

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The specs of its operands."""
        return tuple(spec.dtype for spec in (*self.inputs, *self.outputs))

    @property
    def kernel(self) -> None:
        """Return None, as it runs Python code."""

    def instruction(self) -> CallbackKernel:
        """Return a callback that takes the addresses of the operands."""
        return CallbackKernel(
            _Operands(self),
            [spec.nbytes for spec in self.inputs],
            [spec.nbytes for spec in self.outputs],
        )

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once on operands anywhere."""
        del scratch
        _Operands(self)(*addresses)

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run in memory of a pool; 0 if that has too little."""
        sizes = [spec.nbytes for spec in (*self.inputs, *self.outputs)]
        return measure_instruction(self.instruction(), sizes, 0, pool)


class _Operands:
    """A kernel and the arrays at the addresses of its last run."""

    __slots__ = ("_addresses", "_arrays", "_kernel")

    def __init__(self, kernel: _ReferenceKernel) -> None:
        self._kernel = kernel
        self._addresses: tuple[int, ...] | None = None
        self._arrays: list[NDArray[Any]] = []

    def __call__(self, *addresses: int) -> None:
        """Run once."""
        kernel = self._kernel
        if addresses != self._addresses:
            self._arrays = arrays_at((*kernel.inputs, *kernel.outputs), addresses)
            self._addresses = addresses
        inputs = self._arrays[: len(kernel.inputs)]
        outputs = self._arrays[len(kernel.inputs) :]
        _run(kernel, inputs, outputs)


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
    ) -> _ReferenceKernel:
        """Make the kernel of one op; raise KernelError for an unknown type."""
        if algorithm not in (None, self.name):
            raise KernelError(f"{op_type!r} has no algorithm {algorithm!r}")
        try:
            meaning = ops.op_type(op_type).numpy
        except GraphError:
            raise KernelError(f"there is no kernel of type {op_type!r}") from None
        return _ReferenceKernel(
            meaning, dict(attributes), tuple(inputs), tuple(outputs)
        )

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> None:
        """Return None, as NumPy reads arrays as they are."""


def arrays_at(
    specs: Sequence[OperandSpec], addresses: Sequence[int]
) -> list[NDArray[Any]]:
    return [
        np.ndarray(
            spec.shape,
            array_dtype(spec.dtype),
            memoryview((ctypes.c_uint8 * spec.nbytes).from_address(address)),
        )
        for spec, address in zip(specs, addresses, strict=True)
    ]


def _run(
    kernel: _ReferenceKernel,
    inputs: list[NDArray[Any]],
    outputs: list[NDArray[Any]],
) -> None:
    # As in C++, a NaN or an overflow is a value; the guard of the loss reports it.
    with np.errstate(all="ignore"):
        run_meaning(kernel.function, kernel.attributes, inputs, outputs, kernel.dtypes)
