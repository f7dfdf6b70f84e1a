"""Graphs of ops as ONNX files, beside what onnx's reference computes of them."""

from __future__ import annotations

import numpy as np
import pytest
from elementwise_cases import ATTRIBUTES, ELEMENTWISE, operands_of
from onnx_runs import assert_same, node_types, reference

from memcfg import ops
from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.onnx import RULES, Traces, emit, exported_by, write_file

FORWARD = [
    name
    for name in ELEMENTWISE
    if "gradient" not in name and not ops.op_type(name).formula.state
    if "step" not in ops.op_type(name).formula.operands
]
# What inference may have, and ONNX has no node for.
ABSENT = {
    *("cholesky", "cofactors", "eigh", "lu_factor", "matrix_inverse", "pseudo_inverse"),
    *("qr", "slogdet", "solve", "solve_triangular", "svd", "ctc_loss"),
    *("ctc_beam_search", "dropout", "random_uniform", "overlap_add", "next_after"),
    *("greatest_common_divisor", "least_common_multiple", "left_shift", "right_shift"),
    *("max_pool2d_at", "norm", "hits", "threshold_counts", "correct_count"),
    *("cross_entropy_rows", "softmax_cross_entropy", "dense_cross_entropy"),
}
# Of training and of plans, which inference is not traced with.
OTHERS = ("_gradient", "_inference", "_update", "_of_float32", "all_", "reduce_scatter")
MORE = {
    *(
        "integer_assign",
        "broadcast",
        "part",
        "chain",
        "factored_means",
        "over_factored_root",
    ),
    *("coded_dense", "read_codes", "read_section"),  # compressed models
    *("dense_int8", "dense_int4", "conv2d_int8", "dequantize"),
}


def written(path, kind, arrays, attributes):
    """Write a file of one op; return its outputs by the reference and by the op."""
    builder = Builder("g")
    inputs = [
        builder.tensor(f"x{i}", x.shape, x.dtype.name, "input")
        for i, x in enumerate(arrays)
    ]
    outputs = builder.apply(kind, inputs, attributes)
    graph = builder.build(outputs)
    names = {tensor: f"x{i}" for i, tensor in enumerate(inputs)}
    results = [(tensor, f"y{i}") for i, tensor in enumerate(outputs)]
    emitter = emit(Traces([graph], [{}], names, results), pytest.fail)
    write_file(emitter, path, "g")
    expected = [
        np.empty(graph.tensors[i].shape, graph.tensors[i].dtype) for i in outputs
    ]
    with np.errstate(all="ignore"):
        ops.op_type(kind).numpy(attributes, arrays, expected)
        return reference(path, *arrays), expected


@pytest.mark.parametrize("name", FORWARD)
def test_element_wise_ops_compute_what_they_mean(name, tmp_path):
    kind = ops.op_type(name)
    arrays = operands_of(kind, 40)
    given = {key: ATTRIBUTES[key] for key in kind.formula.defaults if key in ATTRIBUTES}
    found, expected = written(tmp_path / "op.onnx", name, arrays, given)
    for a, b in zip(found, expected, strict=True):
        if name == "hard_silu":  # -inf * 0 is NaN in ONNX
            a, b = a[np.isfinite(arrays[0])], b[np.isfinite(arrays[0])]
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


X = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
INDEX = np.array([[1, 0, -1], [2, 5, 1]], np.int32)
INTEGERS = [np.array([7, -7, 5, 0, -3], np.int32), np.array([2, 2, 0, 3, -2], np.int32)]
CASES = {
    "argmax": ([X], {}),
    "batch_moments": ([X], {}),
    "broadcast_to": ([X[:, :1]], {"shape": (5, 2, 4, 6, 3)}),
    "concatenate": ([X, X[:, :, :2]], {"axis": 2}),
    "determinant": ([X[..., :3, :]], {}),
    "fourier": ([X, X[::-1].copy()], {"inverse": True}),
    "frames": ([X], {"length": 2, "step": 1, "dilation": 1}),
    "interpolate": ([X], {"axis": 1, "factor": 3}),
    "log_softmax": ([X], {"axis": 1}),
    "matmul": ([X, X], {"transpose_b": True}),
    "max_pool2d_inference": (
        [X],
        {"pool_size": (2, 3), "strides": (2, 1), "padding": ((0, 1), (1, 0))},
    ),
    "average_pool2d": (
        [X],
        {"pool_size": (2, 3), "strides": (1, 2), "padding": ((1, 0), (1, 1))},
    ),
    "one_hot": ([INDEX], {"depth": 4}),
    "order": ([X.round()], {"descending": True}),
    "pad": (
        [X],
        {
            "before": (0, 1, 0, 2),
            "after": (0, 0, 3, 0),
            "value": 1.5,
            "strides": (1, 2, 1, 3),
        },
    ),
    "put_along": ([np.abs(INDEX), X[0, :2, 0]], {"length": 7}),
    "reduce_max": ([X], {"axes": (1, -1), "keepdims": True}),
    "reduce_mean": ([X], {"axes": (0, 2)}),
    "reverse": ([X], {"axes": (1, -1)}),
    "scatter_add": ([INDEX, X[:, :3]], {"rows": 3}),
    "slice": (
        [X],
        {"begin": (0, 1, 0, 0), "end": (2, 4, 6, 2), "strides": (1, 2, 3, 1)},
    ),
    "softmax": ([X], {"axis": -1, "causal": True}),
    "split": ([X], {"axis": 2, "lengths": (1, 3, 2)}),
    "take_along": ([X[0, :2, :, 0], np.abs(INDEX)], {}),
    "triangle": ([X], {"lower": True, "offset": -1}),
    **{
        name: (INTEGERS, {})
        for name in (
            *("integer_add", "integer_multiply", "integer_floor_divide"),
            *("integer_remainder", "integer_truncated_remainder", "integer_less"),
            *("integer_not_equal", "integer_maximum", "bitwise_and", "bitwise_xor"),
        )
    },
}


@pytest.mark.parametrize("name", CASES)
def test_ops_compute_what_they_mean(name, tmp_path):
    arrays, attributes = CASES[name]
    found, expected = written(tmp_path / "op.onnx", name, arrays, attributes)
    assert_same(found, expected)


def test_every_op_of_inference_is_exported_or_listed():
    """An op type that is new is added to the rules, or here with the reason."""
    left = {
        kind.name
        for kind in ops.op_types()
        if exported_by(kind.name) is None and kind.composite is None
    }
    left = {n for n in left if not any(each in n for each in OTHERS)} - MORE
    assert left == ABSENT
    assert not RULES.keys() & ABSENT


def test_an_op_without_a_counterpart_is_named_with_its_layer(tmp_path):
    with pytest.raises(
        GraphError, match=r"'qr' \(qr\) of layer 'qr' has no counterpart"
    ):
        written(tmp_path / "op.onnx", "qr", [X], {"complete": False})


def test_transposes_cancel(tmp_path):
    """Channels first, an element-wise op, and back: no node but the op."""
    builder = Builder("g")
    x = builder.tensor("x", X.shape, "float32", "input")
    (y,) = builder.apply("transpose", (x,), {"axes": (0, 3, 1, 2)})
    (y,) = builder.apply("relu", (y,))
    (y,) = builder.apply("transpose", (y,), {"axes": (0, 2, 3, 1)})
    graph = builder.build([y])
    path = tmp_path / "op.onnx"
    emitter = emit(Traces([graph], [{}], {x: "x"}, [(y, "y")]), pytest.fail)
    write_file(emitter, path, "g")
    assert node_types(path) == ["Relu"]
    np.testing.assert_array_equal(reference(path, X)[0], np.maximum(X, 0))


def test_traces_of_other_ops_are_refused():
    graphs = []
    for kind in ("relu", "tanh"):
        builder = Builder("g")
        x = builder.tensor("x", (2,), "float32", "input")
        graphs.append(builder.build(builder.apply(kind, (x,))))
    with pytest.raises(GraphError, match=r"other ops for \{'batch': 2\}"):
        Traces(graphs, [{"batch": 2}, {"batch": 3}], {0: "x"}, [(1, "y")])


def test_arrays_that_no_message_holds_have_a_file_of_their_own(tmp_path):
    builder = Builder("g")
    x = builder.tensor("x", (3, 40), "float32", "input")
    kernel = builder.tensor("kernel", (40, 50), "float32", "parameter")
    (y,) = builder.apply("dense", (x, kernel))
    weight = np.arange(2000, dtype="f4").reshape(40, 50)
    traces = Traces([builder.build([y])], [{}], {x: "x"}, [(y, "y")])
    emitter = emit(traces, lambda name: {"kernel": weight}[name])
    path = tmp_path / "m.onnx"
    with pytest.raises(ValueError, match="8000 bytes do not fit an ONNX file, of 7999"):
        write_file(emitter, path, "g", external_data=False, message_bytes=7999)
    assert not path.exists()
    write_file(emitter, path, "g", message_bytes=7999)
    assert (tmp_path / "m.onnx.data").stat().st_size == 8192
    samples = np.ones((3, 40), np.float32)
    np.testing.assert_allclose(reference(path, samples)[0], samples @ weight)
    write_file(emitter, path, "g", message_bytes=8000)
    assert path.stat().st_size > 8000
