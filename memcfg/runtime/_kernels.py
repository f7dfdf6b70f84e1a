"""What a device makes of a graph's ops.

Owns the step from ops to kernels: scratch sizes go into the graph before it is
planned, addresses into the kernels after.
"""

from __future__ import annotations

from dataclasses import replace

from memcfg.devices import BoundlessKernel, Device, OperandSpec
from memcfg.errors import GraphError
from memcfg.graph import Algorithm, Graph, Op, Tensor

__all__ = ["annotate", "kernels_for"]


def kernels_for(graph: Graph, device: Device) -> tuple[BoundlessKernel, ...]:
    """Return a kernel for each op, not yet bound to addresses."""
    return tuple(
        device.kernels.make(
            op.type, op.attributes, _specs(graph, op.inputs), _specs(graph, op.outputs)
        )
        for op in graph.ops
    )


def annotate(graph: Graph, kernels: tuple[BoundlessKernel, ...]) -> Graph:
    """Return the graph with the algorithms and scratch sizes of these kernels."""
    pairs = zip(graph.ops, kernels, strict=True)
    return replace(graph, ops=tuple(_with(op, kernel) for op, kernel in pairs))


def _with(op: Op, kernel: BoundlessKernel) -> Op:
    choice = Algorithm(kernel.algorithm, op.seconds, kernel.scratch_bytes)
    return replace(op, scratch_bytes=kernel.scratch_bytes, algorithms=(choice,))


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
