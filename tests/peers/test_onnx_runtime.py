"""Every layer and network of the zoo in onnxruntime, and what ONNX files compute."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from op_cases import CASES as OPS
from zoo_table import SMALL, make_small

import memcfg as mc
from memcfg.errors import GraphError

onnxruntime = pytest.importorskip("onnxruntime", reason="run: tox run -e parity")

from onnx_runs import (  # noqa: E402
    assert_same,
    in_float64,
    onnx,
    predicted,
    runtime,
    samples,
)

nn, from_onnx = mc.nn, mc.nn.models.from_onnx
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


def _table():
    """The layers of tests/nn/test_every_layer.py."""
    path = Path(__file__).parents[1] / "nn" / "test_every_layer.py"
    spec = importlib.util.spec_from_file_location("every_layer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LAYERS = _table()
INDICES = ("Embedding", "ReversibleEmbedding")
# Their files have a Scan, or give the places of maxima to other nodes.
ONE_WAY = ("MaxUnpooling2D",)


def layer_model(name):
    layer, shape = LAYERS.made(name), LAYERS.MADE[name][2]
    x = nn.Input(shape, dtype="int32" if name in INDICES else "float32")
    return nn.Model(x, LAYERS.called(layer, x))


@pytest.mark.parametrize("name", sorted(LAYERS.MADE))
def test_a_layer_computes_the_same_there_and_when_it_comes_back(name, tmp_path):
    model, path = layer_model(name), tmp_path / "m.onnx"
    if any(steps for _, steps in model._network.prepared):
        with pytest.raises(GraphError, match="prepares data"):
            model.export(path)
        return
    model.export(path)
    x = samples(model, classes=8)
    assert_same(runtime(path, *x), predicted(model, x))
    if name in ONE_WAY:
        with pytest.raises(NotImplementedError):
            from_onnx(path)
    else:
        assert_same(predicted(from_onnx(path), x), predicted(model, x))


DEEP = (
    *("resnet101", "resnet152", "resnet34", "resnet50", "vgg19", "vgg16", "unet"),
    *("densenet121", "inception_v3"),
)
VANISHING = ("fcn8", "mobilenet")  # by the weights that they begin with


def drawn(weights):
    """Weights without arrays of zeros."""
    random = np.random.default_rng(3)
    return [
        w if w.any() else random.normal(0, 0.1, w.shape).astype(w.dtype)
        for w in weights
    ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in DEEP else [])
        for name in sorted(SMALL)
    ],
)
def test_a_network_computes_the_same_there(name, tmp_path, monkeypatch):
    """To 1e-5 of the largest output, and deep ones to 1e-5 of sums in float64."""
    nn.set_random_seed(5)
    model, path = make_small(name, monkeypatch), tmp_path / "m.onnx"
    if name in VANISHING:
        model.set_weights(drawn(model.get_weights()))
    model.export(path)
    x = samples(model, 2)
    expected, found = predicted(model, x), runtime(path, *x)
    assert min(np.abs(each).max() for each in expected) > 1e-5
    assert_same(found, expected, least=0)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    if "Conv" in kinds:  # once to channels first, and where a sample is flattened
        assert kinds.count("Transpose") <= 3
    if name in DEEP:
        exact = in_float64(path, *x)
        assert exact[0].dtype == np.float64
        for each in (found, expected):
            assert_same(each, exact, least=0)


MATRICES = {  # have no counterpart
    *("inv", "logdet", "slogdet", "cholesky", "cholesky upper", "cholesky_inverse"),
    *("solve", "solve for vectors", "solve_triangular", "pinv", "qr", "r"),
    *("singular values", "eigenvalues", "spectral norm"),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_computes_the_same_there_and_when_it_comes_back(name, tmp_path):
    starts = [nn.Input((3, 4)), nn.Input((3, 4))]
    model = nn.Model(starts, [OPS[name][0](nn.ops, *starts), starts[1] * 1.0])
    path = tmp_path / "m.onnx"
    if name in MATRICES:
        with pytest.raises(GraphError, match="no counterpart in ONNX"):
            model.export(path)
        return
    model.export(path)
    x = list(np.random.default_rng(2).uniform(0.5, 1.5, (2, 5, 3, 4)).astype("f4"))
    expected = predicted(model, x)
    assert_same(runtime(path, *x), expected)
    assert_same(predicted(from_onnx(path), x), expected)


def sums_there(path, x, kernel):
    """The products of unsigned by signed numbers of 8 bits, by onnxruntime."""
    x, kernel = np.asarray(x, np.uint8), np.asarray(kernel, np.int8)
    info, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["x", "kernel"], ["y"])],
        "g",
        [info("x", kinds.UINT8, x.shape)],
        [info("y", kinds.INT32, (len(x), kernel.shape[1]))],
        [onnx.numpy_helper.from_array(kernel, "kernel")],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return runtime(path, x)[0]


def saturated(x, kernel):
    """The same in pairs of 16 bits, as vpmaddubsw adds them without VNNI."""
    products = np.asarray(x, int)[:, :, None] * np.asarray(kernel, int)
    pairs = products.reshape(len(x), -1, 2, products.shape[-1]).sum(2)
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(1)


def saturates(path):
    x, kernel = np.full((1, 64), 255), np.full((64, 16), 127)
    return not np.array_equal(sums_there(path, x, kernel), x @ kernel)


@pytest.mark.parametrize("largest", [64, 127])
def test_sums_of_integers_there_are_exact_or_saturate(largest, tmp_path):
    random, path = np.random.default_rng(3), tmp_path / "m.onnx"
    x = random.integers(200, 256, (4, 64))
    kernel = random.integers(largest // 2, largest + 1, (64, 16))
    found = sums_there(path, x, kernel)
    exact = largest == 64 or not saturates(path)
    np.testing.assert_array_equal(
        found, (x @ kernel) if exact else saturated(x, kernel)
    )
    assert np.array_equal(x @ kernel, saturated(x, kernel)) == (largest == 64)


@pytest.mark.parametrize("reduce_range", [False, True])
def test_int8_is_computed_there_as_it_is_read_here(reduce_range, tmp_path):
    model, path = make_small_cnn(), tmp_path / "m.onnx"
    x = samples(model, 64)
    model.export(
        path, quantize="int8", calibration_data=x[0], reduce_range=reduce_range
    )
    optimized = reduce_range or not saturates(tmp_path / "sums.onnx")
    (there,) = runtime(path, *x, optimized=optimized)
    (here,) = predicted(from_onnx(path), x)
    (exact,) = predicted(model, x)
    scale = np.abs(exact).max()
    # Sums of integers are exact; a tie between two roundings may go either way.
    assert np.abs(there - here).max() < 0.02 * scale
    assert np.abs(there - exact).max() < 0.05 * scale
    assert (there.argmax(-1) == exact.argmax(-1)).mean() > 0.9


def make_small_cnn():
    return nn.Sequential(
        [
            nn.Input((12, 12, 3)),
            nn.Conv2D(16, 3, padding="same"),
            nn.BatchNormalization(),
            nn.ReLU(),
            nn.MaxPooling2D(),
            nn.DepthwiseConv2D(3, activation="relu"),
            nn.Conv2D(8, 3, activation="relu"),
            nn.GlobalAveragePooling2D(),
            nn.Dense(5),
        ]
    )


helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
X = np.random.default_rng(1).normal(size=(2, 4, 6, 5)).astype(np.float32)
NODES = {  # where onnx's own reference differs from its text
    "local response": ("LRN", ["x"], {"size": 3, "alpha": 0.5, "bias": 2.0}, {}, 20),
    "softmax of old": ("Softmax", ["x"], {"axis": 2}, {}, 11),
    "cropped": (
        "Pad",
        ["x", "p", "v"],
        {},
        {"p": np.array([0, 1, -1, 0, 0, 0, 2, -2]), "v": np.float32(3)},
        20,
    ),
    "nearest": (
        "Resize",
        ["x", "", "s"],
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"s": np.array([1, 1, 2, 3], "f4")},
        20,
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_computes_what_the_runtime_does(name, tmp_path):
    kind, inputs, attributes, arrays, opset = NODES[name]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ("N", *X.shape[1:]))],
        [helper.make_tensor_value_info("y", FLOAT, (None,) * 4)],
        [onnx.numpy_helper.from_array(each, k) for k, each in arrays.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert_same(predicted(from_onnx(path), [X]), runtime(path, X))
