"""What a device makes of a graph's ops.

Owns the step from ops to kernels: scratch sizes go into the graph before it is
planned, addresses into the kernels after.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.devices import Device, OperandSpec, Packing, UnboundKernel
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Algorithm, Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Kernels"]


class Kernels:
    """The kernels of a graph's ops, not yet bound to addresses.

    Those of each op's default algorithm are made at once, others when they are named.
    """

    def __init__(self, graph: Graph, device: Device) -> None:
        if not device.takes_bfloat16:
            _refuse_bfloat16(graph, device)
        self._table = device.kernels
        self._specs = [
            (
                op.type,
                op.attributes,
                _specs(graph, op.inputs),
                _specs(graph, op.outputs),
            )
            for op in graph.ops
        ]
        self._made: dict[tuple[int, str | None], UnboundKernel] = {}
        self._packings: Mapping[int, Packing] = {}  # by op
        for index in range(len(graph.ops)):
            self.get(index)

    def get(self, op: int, algorithm: str | None = None) -> UnboundKernel:
        """Return the kernel of an op; KernelError if there is no such algorithm."""
        if op in self._packings:
            kernel = self._packings[op].kernel
            if algorithm not in (None, kernel.algorithm):
                raise KernelError(f"packed weights are not for {algorithm!r}")
            return kernel
        key = (op, algorithm)
        if key not in self._made:
            self._made[key] = self._table.make(*self._specs[op], algorithm)
        return self._made[key]

    def packing(self, op: int) -> Packing | None:
        """Say how an op would read an input packed; None where that gains nothing."""
        return self._table.packing(*self._specs[op])

    def signature(self, op: int) -> object:
        """Return what an op's kernels depend on: those of equal ops pack alike."""
        op_type, attributes, inputs, outputs = self._specs[op]
        return op_type, repr(sorted(attributes.items())), inputs, outputs

    def with_packed(self, packings: Mapping[int, Packing]) -> Kernels:
        """Return the same kernels, where these ops read an input packed."""
        made = copy(self)
        made._packings = packings
        return made

    def annotate(self, graph: Graph) -> Graph:
        """Return the graph with the algorithms and scratch sizes of its kernels."""
        return replace(
            graph, ops=tuple(map(self._with, range(len(graph.ops)), graph.ops))
        )

    def _with(self, index: int, op: Op) -> Op:
        if index in self._packings:
            kernel = self._packings[index].kernel
            own = Algorithm(kernel.algorithm, op.seconds, kernel.scratch_bytes)
            return replace(op, scratch_bytes=own.scratch_bytes, algorithms=(own,))
        found = tuple(
            Algorithm(name, seconds or op.seconds, scratch)
            for name, scratch, seconds in self._table.algorithms(*self._specs[index])
        )
        return replace(op, scratch_bytes=found[0].scratch_bytes, algorithms=found)


def _refuse_bfloat16(graph: Graph, device: Device) -> None:
    """Raise KernelError if a tensor is bfloat16."""
    if any(tensor.dtype == "bfloat16" for tensor in graph.tensors):
        raise KernelError(
            f"{device.name} takes no bfloat16: models of dtype 'mixed_bfloat16' run on "
            "a CPU; on a GPU use dtype 'float32'"
        )


def _specs(graph: Graph, tensors: tuple[int, ...]) -> tuple[OperandSpec, ...]:
    return tuple(_spec(graph.tensors[tensor]) for tensor in tensors)


def _spec(tensor: Tensor) -> OperandSpec:
    if tensor.shape is None or tensor.dtype is None:
        raise GraphError(f"tensor {tensor.name!r} has no shape: it cannot be run")
    spec = OperandSpec(tensor.shape, tensor.dtype)
    if spec.nbytes > tensor.nbytes:
        raise GraphError(
            f"tensor {tensor.name!r} has {tensor.nbytes} B, and its {tensor.dtype} of "
            f"shape {tensor.shape} take {spec.nbytes} B"
        )
    return spec
