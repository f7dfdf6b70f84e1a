"""The kernels of the native core, from oneDNN or its own."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg import ops
from memcfg._caller import outside
from memcfg._core import (
    Kernel,
    OneDNN,
    get_num_threads,
    has_kernel,
    list_algorithms,
    make_packing,
)
from memcfg.devices._algorithm_choice import asked_choice, choose_fastest
from memcfg.devices._algorithm_times import AlgorithmTimes, asks_for_times, describe
from memcfg.devices._contract import Packing
from memcfg.devices.cpu._processor import processor_facts
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.devices.cpu._run_seconds import measure_runs
from memcfg.errors import GraphError, KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec, UnboundKernel
    from memcfg.memory import Pool


@dataclass(frozen=True)
class NativeKernel:
    """A native kernel; addresses come with the instruction of a program."""

    kernel: Kernel

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
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

    def measure(self, pool: Pool) -> float:
        """Return the seconds of a run in memory of a pool; 0 if that has too little."""
        return measure_runs(self.kernel, pool)


class NativeKernels:
    """Convolutions and matrix products by oneDNN, all other ops by memcfg's kernels.

    Parameters
    ----------
    library : OneDNN
        The loaded library.
    pool : Pool or None, default None
        The pool in which kernels are measured; None to measure nothing.
    """

    name = "onednn"

    def __init__(self, library: OneDNN, pool: Pool | None = None) -> None:
        self._library = library
        self._pool = pool
        self._measures = asks_for_times()
        self._choice = asked_choice()
        self._times = AlgorithmTimes()
        self._reference = ReferenceKernels(pool)

    def has(self, op_type: str) -> bool:
        """Return whether a type has a native kernel."""
        return has_kernel(op_type)

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List memcfg's and oneDNN's algorithms, then NumPy's, which is not measured.

        The seconds of several algorithms are measured if ``MEMCFG_MEASURE`` is set. The
        first is the one that ``MEMCFG_CPU_ALGORITHMS`` chooses.
        """
        op = (op_type, attributes, inputs, outputs)
        native = self._list(*op)
        if self._measures and len(native) > 1:
            return self.measure(*op)
        rows = [(name, scratch, 0.0) for name, scratch in native]
        return self._first(*op, rows + self._reference.algorithms(*op))

    def _first(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        rows: list[tuple[str, int, float]],
    ) -> list[tuple[str, int, float]]:
        """Put the default first."""
        first = self._chosen(op_type, attributes, inputs, outputs)
        return sorted(rows, key=lambda row: row[0] != first) if first else rows

    def measure(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the algorithms as `algorithms` does, with the seconds of each.

        They run in memory of the device's pool, once for each shape on a machine.
        Seconds are 0 if the pool has too little memory. NumPy's algorithm is measured
        if it is the only one.
        """
        op = (op_type, attributes, inputs, outputs)
        rows = self._rows(*op)
        if not rows:
            return self._reference.measure(*op)
        return self._first(*op, rows + self._reference.algorithms(*op))

    def _rows(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        *,
        defaults: bool = False,
    ) -> list[tuple[str, int, float]]:
        """List native algorithms with seconds, all or those fit to be defaults."""
        op = (op_type, attributes, inputs, outputs)
        result = _for_defaults(self._list(*op)) if defaults else self._list(*op)
        if self._pool is None or not result:
            return [(name, scratch, 0.0) for name, scratch in result]
        numbers = kernel_numbers(op_type, attributes)
        assert numbers is not None
        kernels = [
            self._native(op_type, numbers, inputs, outputs, name) for name, _ in result
        ]
        return self._times.rows(op, kernels, self._pool, self._machine)

    @property
    def _machine(self) -> tuple[str, ...]:
        """What seconds depend on in addition to the op."""
        return processor_facts(), self._library.version, str(get_num_threads())

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> UnboundKernel:
        """Make the kernel of one op; KernelError if it does not accept the operands.

        A user's op without a native kernel runs its definition in NumPy.
        """
        op = (op_type, attributes, inputs, outputs)
        reference = algorithm == self._reference.name
        numbers = None if reference else kernel_numbers(op_type, attributes)
        if numbers is None:
            return self._reference.make(*op, algorithm)
        if algorithm is None and self._choice != "default":
            algorithm = self._chosen(*op)
        return self._native(op_type, numbers, inputs, outputs, algorithm)

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> Packing | None:
        """Return oneDNN's packing of a kernel, if it pays."""
        if algorithm == self._reference.name or not has_kernel(op_type):
            return None
        if algorithm is None:
            algorithm = self._chosen(op_type, attributes, inputs, outputs)
        numbers = kernel_numbers(op_type, attributes)
        assert numbers is not None
        made = make_packing(op_type, numbers, inputs, outputs, self._library, algorithm)
        if made is None:
            return None
        operands, pack, kernel, unpack, layout = made
        nbytes, _ = pack.operands[-1]
        own = NativeKernel(pack), NativeKernel(kernel)
        back = None if unpack is None else NativeKernel(unpack)
        return Packing(operands, nbytes, *own, back, layout)

    def _chosen(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> str | None:
        """Return the algorithm of an op if none is named; None for oneDNN's choice."""
        if self._choice == "default":
            return None
        op = (op_type, attributes, inputs, outputs)
        rows = _for_defaults(self._list(*op))
        if len(rows) < 2:
            return None
        if self._choice == "least_scratch":
            return min(rows, key=lambda row: row[1])[0]
        # a table that only plans must not record choices for others
        if self._pool is None:
            return None

        def measure() -> list[float]:
            return [seconds for *_, seconds in self._rows(*op, defaults=True)]

        names = [name for name, _ in rows]
        return choose_fastest(names, self._machine, describe(*op), measure)

    def _list(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int]]:
        """List the name and scratch of native algorithms without compiling anything."""
        numbers = kernel_numbers(op_type, attributes)
        if numbers is None:
            return []
        return list_algorithms(op_type, numbers, inputs, outputs, self._library)

    def _native(
        self,
        op_type: str,
        numbers: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> NativeKernel:
        if not self._library.has_fast_bfloat16:
            _warn_of_bfloat16(self._library, (*inputs, *outputs))
        return NativeKernel(
            Kernel(op_type, numbers, inputs, outputs, self._library, algorithm)
        )


_warned: set[str] = set()  # so that a process is warned of bfloat16 once


def _warn_of_bfloat16(library: OneDNN, operands: Sequence[OperandSpec]) -> None:
    """Warn once if bfloat16 is not faster on this processor."""
    if _warned or all(each.dtype != "bfloat16" for each in operands):
        return
    _warned.add("bfloat16")
    how = (
        "are emulated on float32's instructions"
        if library.has_bfloat16
        else "run in float32, through copies"
    )
    warnings.warn(
        "this processor has no instructions for bfloat16 (AVX512_BF16 or AMX): its "
        f"products {how}, so that it takes less memory and more time. "
        "memcfg.config.set_dtype_policy('float32') is faster here",
        RuntimeWarning,
        stacklevel=outside(),
    )


def _for_defaults(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """List the algorithms that may be defaults, which policies blind to scratch use.

    Those whose scratch grows with the batch are left out.
    """
    return [row for row in rows if row[0] != "im2col" and "/" not in row[0]]


def kernel_numbers(
    op_type: str, attributes: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the attributes for native kernels, or None if there are no such kernels.

    KernelError for an unknown type, or attributes that do not fit.
    """
    try:
        kind = ops.op_type(op_type)
    except GraphError:
        raise KernelError(f"there is no kernel of type {op_type!r}") from None
    if kind.formula is None:
        return attributes if has_kernel(op_type) else None
    try:
        return kind.kernel_attributes(attributes)
    except GraphError as error:
        raise KernelError(f"kernel {op_type!r}: {error}") from None
