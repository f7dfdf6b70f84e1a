"""Run a graph op by op on the NumPy reference kernels, each tensor an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops import op_type

if TYPE_CHECKING:
    from memcfg.graph import Graph


def interpret(graph: Graph, values: dict[str, np.ndarray], real=np.float64, ops=None):
    """Return every tensor by name; float tensors are computed in `real`."""
    rooms: list[np.ndarray | None] = [None] * len(graph.tensors)
    for i, tensor in enumerate(graph.tensors):
        if graph.producer[i] is None:
            kind = real if tensor.dtype == "float32" else tensor.dtype
            rooms[i] = np.asarray(values[tensor.name], kind)
    for op in graph.ops if ops is None else ops:
        for i in op.outputs:
            tensor = graph.tensors[i]
            kind = real if tensor.dtype == "float32" else tensor.dtype
            rooms[i] = np.empty(tensor.shape, kind)
        op_type(op.type).numpy(
            op.attributes,
            [rooms[i] for i in op.inputs],
            [rooms[i] for i in op.outputs],
        )
    return {t.name: room for t, room in zip(graph.tensors, rooms, strict=True)}


def random_values(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Well-conditioned values for everything that no op makes."""
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    for i, tensor in enumerate(graph.tensors):
        if graph.producer[i] is not None:
            continue
        if tensor.name == "labels":
            values[tensor.name] = rng.integers(0, 3, tensor.shape).astype(np.int32)
        elif tensor.name == "step":
            values[tensor.name] = np.int64(5)
        elif tensor.name == "learning_rate":
            values[tensor.name] = np.float32(0.05)
        elif tensor.name.startswith("sgd/"):
            values[tensor.name] = np.zeros(tensor.shape, np.float32)
        elif tensor.name.endswith(("gamma", "moving_variance")):
            values[tensor.name] = rng.uniform(0.5, 1.5, tensor.shape).astype("f4")
        else:
            scale = 1.0 if tensor.name == "x" else 0.5
            values[tensor.name] = (scale * rng.normal(size=tensor.shape)).astype("f4")
    return values
