"""ONNX files run by others: onnx's reference in NumPy, and onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import memcfg as mc

onnx = pytest.importorskip("onnx", reason="needs onnx")
TOLERANCE = 1e-5


def reference(path: Path, *inputs: Any, checked: bool = True) -> list[Any]:
    """The outputs of a file by onnx's own meaning of its nodes."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    if checked:
        onnx.checker.check_model(model, full_check=True)
    names = [each.name for each in model.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    return ReferenceEvaluator(model).run(None, feeds)


def in_float64(path: Path, *inputs: Any) -> list[Any]:
    """The outputs of a file by the same meaning, all numbers of float32 widened."""
    numbers, kinds = onnx.numpy_helper, onnx.TensorProto
    model = onnx.load(path)
    graph = model.graph
    attributes = [each for node in graph.node for each in node.attribute]
    arrays = [each.t for each in attributes if each.HasField("t")]
    for array in (*graph.initializer, *arrays):
        if array.data_type == kinds.FLOAT:
            wide = numbers.to_array(array).astype(np.float64)
            array.CopyFrom(numbers.from_array(wide, array.name))
    for each in (*graph.input, *graph.output, *graph.value_info):
        if each.type.tensor_type.elem_type == kinds.FLOAT:
            each.type.tensor_type.elem_type = kinds.DOUBLE
    onnx.save(model, path.with_suffix(".float64.onnx"))
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    return reference(path.with_suffix(".float64.onnx"), *wide)


def runtime(path: Path, *inputs: Any, optimized: bool = True) -> list[Any]:
    """The outputs of a file by onnxruntime, with or without its joined kernels."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    if not optimized:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def predicted(model: mc.nn.Model, inputs: Any) -> list[Any]:
    """The outputs of a model, as a list."""
    made = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
    if isinstance(made, dict):
        return list(made.values())
    return list(made) if isinstance(made, list | tuple) else [made]


def assert_same(
    found: Any, expected: Any, tolerance: float = TOLERANCE, least: float = 1.0
) -> None:
    """Compare outputs, relative to the largest number of each, or to the least."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        scale = max(least, float(np.nanmax(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, atol=tolerance * scale, rtol=tolerance)


def samples(model: mc.nn.Model, count: int = 3, classes: int = 2) -> list[Any]:
    """Samples for each input of a model."""
    random = np.random.default_rng(7)
    return [
        random.integers(0, classes, (count, *start.sample_shape)).astype(np.int32)
        if start.dtype == "int32"
        else random.normal(size=(count, *start.sample_shape)).astype(np.float32)
        for start in model.inputs
    ]


def node_types(path: Path) -> list[str]:
    """The types of the nodes of a file, without constants."""
    nodes = onnx.load(path).graph.node
    return [node.op_type for node in nodes if node.op_type != "Constant"]
