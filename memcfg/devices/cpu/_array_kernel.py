"""Kernels that a function of NumPy arrays computes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import CallbackKernel
from memcfg.devices.cpu._run_seconds import measure_instruction
from memcfg.ops._dtypes import array_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from memcfg.devices._contract import OperandSpec
    from memcfg.memory import Pool

__all__ = ["ArrayKernel"]

_ITEM = 4  # bytes of a float32, of which scratch consists


@dataclass(frozen=True)
class ArrayKernel:
    """A function of lists of inputs and outputs, and of an array of scratch."""

    function: Callable[[list[NDArray[Any]], list[NDArray[Any]], NDArray[Any]], None]
    inputs: tuple[OperandSpec, ...]
    outputs: tuple[OperandSpec, ...]
    algorithm: str
    scratch_bytes: int = 0

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


class _Operands:
    """A kernel and the arrays at the addresses of its last run."""

    __slots__ = ("_addresses", "_arrays", "_kernel", "_scratch")

    def __init__(self, kernel: ArrayKernel) -> None:
        self._kernel = kernel
        self._addresses: tuple[int, ...] | None = None
        self._arrays: list[NDArray[Any]] = []
        self._scratch = np.empty(0, np.float32)

    def __call__(self, *addresses: int) -> None:
        """Run once."""
        kernel = self._kernel
        if addresses != self._addresses:
            specs = (*kernel.inputs, *kernel.outputs)
            self._arrays = [
                _array_at(address, spec.shape, spec.dtype, spec.nbytes)
                for spec, address in zip(specs, addresses, strict=False)
            ]
            nbytes = kernel.scratch_bytes
            if nbytes:
                shape = (nbytes // _ITEM,)
                self._scratch = _array_at(addresses[-1], shape, "float32", nbytes)
            self._addresses = addresses
        count = len(kernel.inputs)
        # As in C++, a NaN or an overflow is a value; the guard of the loss reports it.
        with np.errstate(all="ignore"):
            kernel.function(self._arrays[:count], self._arrays[count:], self._scratch)


def _array_at(
    address: int, shape: tuple[int, ...], dtype: str, nbytes: int
) -> NDArray[Any]:
    memory = memoryview((ctypes.c_uint8 * nbytes).from_address(address))
    return np.ndarray(shape, array_dtype(dtype), memory)
