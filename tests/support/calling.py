"""NumPy's kernels as a table that calls a function before and behind each run."""

from __future__ import annotations

from dataclasses import dataclass

from memcfg._core import CallbackKernel
from memcfg.devices.cpu import kernel_table


@dataclass(frozen=True)
class Called:
    made: object
    before: object
    behind: object
    sizes: tuple[list[int], list[int]]

    kernel = None
    algorithm = "reference"
    scratch_bytes = 0

    def instruction(self):
        return CallbackKernel(lambda *addresses: self.run(addresses, 0), *self.sizes)

    def run(self, addresses, scratch):
        self.before()
        self.made.run(addresses, scratch)
        self.behind()


class CallingKernels:
    name = "reference"

    def __init__(self, *, before=lambda: None, behind=lambda: None) -> None:
        self._table = kernel_table("reference")
        self._calls = before, behind

    def has(self, op_type):
        return self._table.has(op_type)

    def algorithms(self, *op):
        return self._table.algorithms(*op)

    def measure(self, *op):
        return self._table.measure(*op)

    def packing(self, *op):
        return self._table.packing(*op)

    def make(self, op_type, attributes, inputs, outputs, algorithm=None):
        made = self._table.make(op_type, attributes, inputs, outputs, algorithm)
        sizes = [spec.nbytes for spec in inputs], [spec.nbytes for spec in outputs]
        return Called(made, *self._calls, sizes)
