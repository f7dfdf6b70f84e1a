"""Element-wise functions at special values, in value and gradient.

A function of symbolic tensors becomes a graph with its gradients, whose ops run alone:
on the native kernels, on these block by block, or as NumPy means them.
"""

from __future__ import annotations

import numpy as np
from bfloat16 import round_to_bfloat16, widen
from internals import trace_layers
from machine import Kernel

import memcfg as mc
from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.graph import Builder, gradients

MEANINGS = ("native", "blocks", "numpy")
BFLOAT16 = "bfloat16"
LIMITS = np.finfo(np.float32)
SPECIAL = np.float32(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45),
        *(LIMITS.max, LIMITS.min, LIMITS.tiny, -LIMITS.tiny, 1.0, -1.0, 0.5, -0.5),
    ]
)
KINKS = np.float32([2, -2, 2.5, -2.5, 3, -3, 6, -6, 17, -17, 20, -20, 89, -89, 104])
VALUES = np.concatenate([SPECIAL, KINKS, -KINKS[-1:]])


def to_dtype(values, dtype):
    """Return what float32 values are in a dtype, as float32."""
    values = np.asarray(values, np.float32)
    return widen(round_to_bfloat16(values)) if dtype == BFLOAT16 else values


def values_and_slopes(function, arrays, dtype="float32", meaning="native"):
    """Return f(x, ...) and the gradients of its sum, as float32.

    `arrays` are of one shape (n,) and exact in the dtype. A gradient is None where the
    result does not depend on the array.
    """
    builder = Builder("special values")
    names = [f"x{i}" for i in range(len(arrays))]
    shape = (1, len(arrays[0]))
    inputs = [builder.tensor(n, shape, role="parameter") for n in names]
    y = _trace(function, builder, inputs, dtype)
    wide = y
    if dtype != "float32":
        (wide,) = builder.apply("cast", (y,), {"dtype": "float32"})
    (loss,) = builder.apply("reduce_sum", (wide,), {"axes": (0, 1)}, name="loss")
    slopes = gradients(builder, loss, inputs)
    graph = builder.build([loss, *slopes.values()])
    made = {}
    for tensor, array in zip(inputs, arrays, strict=True):
        made[tensor] = np.asarray(array, np.float32).reshape(shape)
    for op in graph.ops:
        _run(graph, op, made, meaning)

    def read(tensor):
        wide = graph.tensors[tensor].dtype == BFLOAT16
        return (widen(made[tensor]) if wide else made[tensor]).reshape(-1)

    return read(y), [read(slopes[i]) if i in slopes else None for i in inputs]


def _trace(function, builder, inputs, dtype):
    """Append the ops of the layers that a function makes, under a dtype policy."""
    starts = [mc.nn.Input(builder.shape(each)[1:]) for each in inputs]
    before = mc.config.dtype_policy()
    mc.config.set_dtype_policy("mixed_bfloat16" if dtype == BFLOAT16 else dtype)
    try:
        end = function(*starts)
    finally:
        mc.config.set_dtype_policy(before)
    values = dict(zip(starts, inputs, strict=True))
    builder.compute_dtype = "float32"  # layers say their own
    trace_layers(builder, end, values)
    builder.compute_dtype = None
    return values[end]


def _run(graph, op, made, meaning):
    kind = ops.op_type(op.type)
    specs = [[graph.tensors[i] for i in ids] for ids in (op.inputs, op.outputs)]
    inputs = [made[i] for i in op.inputs]
    dtypes = ("uint16" if s.dtype == BFLOAT16 else s.dtype for s in specs[1])
    outputs = [np.empty(s.shape, d) for s, d in zip(specs[1], dtypes, strict=True)]
    operands = [[OperandSpec(s.shape, s.dtype) for s in each] for each in specs]
    if meaning == "numpy":
        kernel = kernel_table("reference").make(op.type, op.attributes, *operands)
    else:
        attributes = dict(kind.kernel_attributes(op.attributes))
        if meaning == "blocks" and kind.formula is not None:
            attributes["interpreted"] = 1
        kernel = Kernel(op.type, attributes, *operands, None)
    scratch = np.empty(kernel.scratch_bytes + 64, np.uint8)
    start = -scratch.ctypes.data % 64
    addresses = [x.ctypes.data for x in (*inputs, *outputs)]
    with np.errstate(all="ignore"):
        kernel.run(addresses, scratch.ctypes.data + start)
    made.update(zip(op.outputs, outputs, strict=True))


def grid(*axes):
    """Return every combination, an array an axis."""
    return [each.reshape(-1) for each in np.meshgrid(*axes, indexing="ij")]
