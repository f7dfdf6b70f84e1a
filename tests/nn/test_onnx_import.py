"""ONNX files as models: what they compute, what is trained, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx_runs import assert_same, onnx, predicted, reference, samples

import memcfg as mc
from memcfg.errors import FormatError
from memcfg.nn.models import from_onnx

nn = mc.nn
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def array(name, value):
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def model(nodes, arrays=(), shape=("N", 4), outputs=("y",), opset=20, **lengths):
    """An ONNX model whose input x has a shape."""
    del lengths
    start = helper.make_tensor_value_info("x", FLOAT, shape)
    ends = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    arrays = [array(name, value) for name, value in dict(arrays).items()]
    graph = helper.make_graph(nodes, "g", [start], ends, initializer=arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(kind, inputs, outputs="y", **attributes):
    names = [each.strip("_") for each in inputs.split()]  # _ is an input left out
    return helper.make_node(kind, names, outputs.split(), f"the {kind}", **attributes)


def check(made, x, path, tolerance=1e-5):
    """Compare a model of a file with onnx's reference; return the model."""
    onnx.save(made, path)
    found = from_onnx(path)
    assert_same(predicted(found, [x]), reference(path, x, checked=False), tolerance)
    return found


RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.normal(size=(2, 4, 6, 5)).astype("f4")
ROWS = RANDOM.normal(size=(3, 4)).astype("f4")
CONV = {
    "w": RANDOM.normal(size=(6, 4, 3, 3)).astype("f4"),
    "b": np.arange(6, dtype="f4"),
}
GROUPED = {"w": RANDOM.normal(size=(6, 2, 3, 2)).astype("f4")}
TURNED = {
    "w": RANDOM.normal(size=(4, 3, 3, 3)).astype("f4"),
    "b": np.arange(3, dtype="f4"),
}
NORM = {n: np.linspace(0.5, 2, 4, dtype="f4") for n in ("g", "b", "m", "v")}
INTS = {"i": np.array([2, 0, -1])}
CASES = {  # nodes, arrays, and samples
    "same padding": (
        [node("Conv", "x w b", auto_pad="SAME_LOWER", strides=[2, 2])],
        CONV,
    ),
    "dilated": ([node("Conv", "x w b", pads=[2, 1, 2, 1], dilations=[2, 1])], CONV),
    "grouped": ([node("Conv", "x w", group=2, pads=[0, 1, 1, 0])], GROUPED),
    "transposed": (
        [
            node(
                *("ConvTranspose", "x w b"),
                strides=[2, 3],
                pads=[1, 0, 1, 1],
                output_padding=[1, 0],
            )
        ],
        TURNED,
    ),
    "transposed over gaps": ([node("ConvTranspose", "x w b", strides=[4, 5])], TURNED),
    "average with padding": (
        [
            node(
                *("AveragePool", "x"),
                kernel_shape=[3, 2],
                pads=[1, 1, 1, 0],
                count_include_pad=1,
            )
        ],
        {},
    ),
    "pooling rounded up": (
        [node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        {},
    ),
    "global": ([node("GlobalMaxPool", "x a"[:1])], {}),
    "batch normalisation": ([node("BatchNormalization", "x g b m v")], NORM),
    "instances": ([node("InstanceNormalization", "x g b")], NORM),
    "groups": ([node("GroupNormalization", "x g b", num_groups=2)], {}, 21),
    "layer": (
        [node("LayerNormalization", "x g b", axis=3)],
        {"g": np.arange(5, dtype="f4"), "b": np.ones(5, "f4")},
    ),
    "layer of two axes": (
        [node("LayerNormalization", "x g b", axis=2)],
        {"g": np.ones((6, 5), "f4"), "b": RANDOM.normal(size=(6, 5)).astype("f4")},
    ),
    "slopes": ([node("PRelu", "x s")], {"s": NORM["g"].reshape(4, 1, 1)}),
    "resize": (
        [node("Resize", "x _ s", mode="linear")],
        {"s": np.array([1, 1, 2, 3], "f4")},
    ),
    "depth to space": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], {}),
    "space to depth": (
        [node("Slice", "x a b c", "z"), node("SpaceToDepth", "z", blocksize=2)],
        {"a": np.array([0]), "b": np.array([4]), "c": np.array([3])},
    ),
    "reflected": (
        [node("Pad", "x p", mode="reflect")],
        {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])},
    ),
    "padded": (
        [node("Pad", "x p v")],
        {"p": np.array([0, 1, 0, 0, 0, 0, 2, 0]), "v": np.float32(3)},
    ),
    "steps back": (
        [node("Slice", "x a b c d")],
        {
            "a": np.array([-1, 4]),
            "b": np.array([-99, 0]),
            "c": np.array([2, 3]),
            "d": np.array([-2, -3]),
        },
    ),
    "taken": ([node("Gather", "x i", axis=2)], INTS),
    "maxima": (
        [node("ArgMax", "x", "z", axis=1, keepdims=0), node("Cast", "z", to=1)],
        {},
    ),
    "sums in order": (
        [node("CumSum", "x a", exclusive=1, reverse=1)],
        {"a": np.array(2)},
    ),
    "smallest": (
        [node("TopK", "x k", "y z", axis=2, largest=0)],
        {"k": np.array([2])},
    ),
    "one hot": (
        [
            node("ArgMax", "x", "z", axis=3, keepdims=0),
            node("OneHot", "z d v", axis=1),
        ],
        {"d": np.array(5), "v": np.array([-1, 2], "f4")},
    ),
    "norm of an axis": (
        [node("ReduceL2", "x a", keepdims=0)],
        {"a": np.array([1, -1])},
    ),
    "triangle": ([node("Trilu", "x k", upper=0)], {"k": np.array(-1)}),
    "sums of products": (
        [node("Einsum", "x w", equation="nchw,wk->nkch")],
        {"w": RANDOM.normal(size=(5, 3)).astype("f4")},
    ),
    "matrix on the left": (
        [node("MatMul", "w x")],
        {"w": RANDOM.normal(size=(3, 6)).astype("f4")},
    ),
    "matrices of matrices": (
        [node("Transpose", "x", "z", perm=[0, 1, 3, 2]), node("MatMul", "x z")],
        {},
    ),
    "matrices of constants": (
        [node("MatMul", "x w")],
        {"w": RANDOM.normal(size=(4, 5, 3)).astype("f4")},
    ),
    "a spread constant": (
        [
            node("Shape", "x", "s", end=1),
            node("Concat", "s t", "u", axis=0),
            node("Expand", "c u", "z"),
            node("Concat", "x z", axis=2),
        ],
        {"t": np.array([4, 2, 5]), "c": np.arange(5, dtype="f4")},
    ),
    "a clipped sum": (
        [node("Clip", "x a b", "z"), node("Sum", "z x z", "u"), node("Min", "u x")],
        {"a": np.float32(-0.5), "b": np.float32(0.25)},
    ),
    "choices": (
        [
            node("Greater", "x a", "c"),
            node("Not", "c", "d"),
            node("Where", "d x a"),
        ],
        {"a": np.float32([[0.1], [0.2], [0.3], [0.4]]).reshape(4, 1, 1)},
    ),
    "rounded": (
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z")],
        {"s": np.float32(0.02), "z": np.int8(3)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_computes_what_onnx_says(name, tmp_path):
    nodes, arrays, *opset = CASES[name]
    shape = ("N", *IMAGES.shape[1:])
    if name == "groups":
        arrays = NORM
    outputs = [each for each in nodes[-1].output if each == "y"]
    made = model(nodes, arrays, shape, outputs, *opset)
    check(made, IMAGES, tmp_path / "m.onnx")


def test_a_bias_is_part_of_the_layer_of_its_product():
    made = model(
        [node("MatMul", "x w", "z"), node("Add", "z b", "a"), node("Relu", "a")],
        {"w": np.ones((4, 3), "f4"), "b": np.ones(3, "f4")},
    )
    names = [(type(each).__name__, each.name) for each in from_onnx(made).layers]
    assert names == [("InputLayer", "x"), ("Dense", "w"), ("ReLU", "the.Relu")]


def test_one_array_is_one_weight_wherever_it_is_read():
    made = model(
        [node("MatMul", "x w", "z"), node("MatMul", "z w")],
        {"w": 2 * np.eye(4, dtype="f4")},
    )
    found = from_onnx(made)
    assert found.count_params() == 16
    np.testing.assert_array_equal(found.predict(ROWS, verbose=0), 4 * ROWS)


def test_arrays_are_trained_and_constants_are_not():
    constant = helper.make_node("Constant", [], ["c"], value=array("c", ROWS[0]))
    made = model(
        [
            constant,
            *(node("Mul", "x w", "a"), node("Add", "a c", "b")),
            *(node("Mul", "b s", "d"), node("Add", "d m")),
        ],
        {
            "w": ROWS[1],
            "s": np.float32(2.0),
            "m": np.float32([0, -np.inf, 0, 0]),
        },
    )
    found = from_onnx(made)
    assert [each.shape for each in found.trainable_weights] == [(4,)]
    expected = (ROWS * ROWS[1] + ROWS[0]) * 2 + [0, -np.inf, 0, 0]
    np.testing.assert_allclose(found.predict(ROWS, verbose=0), expected, rtol=1e-6)


def test_a_batch_in_the_second_axis_comes_first():
    """Steps first, as PyTorch's recurrent layers have them."""
    weights = {
        "w": RANDOM.normal(size=(2, 12, 5)).astype("f4"),
        "r": RANDOM.normal(size=(2, 12, 3)).astype("f4"),
        "b": RANDOM.normal(size=(2, 24)).astype("f4"),
    }
    made = model(
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node(
                *("LSTM", "t w r b", "z h c"),
                hidden_size=3,
                direction="bidirectional",
            ),
            node("Transpose", "z", "u", perm=[2, 0, 1, 3]),
            node("Reshape", "u s", "y"),
            node("Transpose", "c", "d", perm=[1, 0, 2]),
        ],
        weights | {"s": np.array([0, 0, -1])},
        ("N", 6, 5),
        ("y", "d"),
    )
    x = RANDOM.normal(size=(4, 6, 5)).astype("f4")
    found = from_onnx(made)
    from onnx.reference import ReferenceEvaluator

    assert_same(
        predicted(found, [x])[1:], ReferenceEvaluator(made).run(["d"], {"x": x})
    )


class Chain:
    """Nodes one after another, and the shape of the last value, by the axes' labels."""

    def __init__(self):
        self.shape = [("N", 3), ("a", 4), ("b", 6)]
        self.nodes, self.arrays, self.name = [], {}, "x"

    def add(self, kind, array=None, **attributes):
        new, names = f"v{len(self.nodes)}", self.name
        if array is not None:
            self.arrays[f"a{len(self.nodes)}"] = np.asarray(array)
            names += f" a{len(self.nodes)}"
        self.nodes.append(node(kind, names, new, **attributes))
        self.name = new

    def turn(self, perm):
        self.add("Transpose", perm=perm)
        self.shape = [self.shape[axis] for axis in perm]

    def one(self, axis):
        self.add("Unsqueeze", [axis])
        self.shape.insert(axis, ("", 1))

    def divide(self, axis):
        label, length = self.shape[axis]
        if "N" not in label and length % 2 == 0:
            parts = [(label + "0", 2), (label + "1", length // 2)]
            self.reshape([*self.shape[:axis], *parts, *self.shape[axis + 1 :]])

    def join(self, axis):
        if axis + 1 < len(self.shape):
            (a, m), (b, n) = self.shape[axis : axis + 2]
            self.reshape([*self.shape[:axis], (a + b, m * n), *self.shape[axis + 2 :]])

    def reshape(self, shape):
        self.shape = shape
        self.add("Reshape", [-1 if "N" in label else n for label, n in shape])

    def shift(self, axis):
        label, length = self.shape[axis]
        if "N" not in label:
            wide = [length if i == axis else 1 for i in range(len(self.shape))]
            self.add("Add", np.arange(length, dtype="f4").reshape(wide))

    def square(self, axis):
        self.nodes.append(
            node("Mul", f"{self.name} {self.name}", f"s{axis}{self.name}")
        )
        self.name = f"s{axis}{self.name}"


@st.composite
def chains(draw):
    """Chains that turn, divide, join and mix axes, and put the batch in front."""
    chain = Chain()
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(["turn", "divide", "join", "one", "shift", "square"])
        )
        axes = range(len(chain.shape))
        if kind == "turn":
            chain.turn(draw(st.permutations(axes)))
        else:
            getattr(chain, kind)(draw(st.sampled_from(axes)))
    labels = [label for label, _ in chain.shape]
    assume("N" in labels)  # it is an axis of its own again
    first = labels.index("N")
    chain.turn([first, *(i for i in range(len(labels)) if i != first)])
    chain.reshape([("N", 3), ("all", 24)])
    chain.nodes[-1].output[0] = "y"
    return chain


@settings(max_examples=60, deadline=None)
@given(chains())
def test_views_give_the_numbers_of_their_nodes(chain):
    from onnx.reference import ReferenceEvaluator

    made = model(chain.nodes, chain.arrays, ("N", 4, 6))
    x = np.arange(72, dtype="f4").reshape(3, 4, 6) / 24
    expected = ReferenceEvaluator(made).run(None, {"x": x})
    assert_same(predicted(from_onnx(made), [x]), expected)


REFUSED = [
    (model([node("NonZero", "x")]), NotImplementedError, r"'the NonZero' \(NonZero\)"),
    (
        model([node("GatherND", "x a")], {"a": np.array([[0, 1]])}),
        NotImplementedError,
        r"'the GatherND' \(GatherND\): there are no layers for GatherND",
    ),
    (
        model([node("ReduceSum", "x a")], {"a": np.array([0])}),
        NotImplementedError,
        "reduces the batch",
    ),
    (
        model([node("Reshape", "x a")], {"a": np.array([3, 5])}),
        FormatError,
        r"cannot be reshaped to \(3, 5\)",
    ),
    (
        model([node("Transpose", "x", perm=[0, 2])]),
        FormatError,
        "there is no axis 2 of 2",
    ),
    (
        model([node("MatMul", "x w")], {"w": np.ones((3, 2), "f4")}),
        FormatError,
        "the MatMul",
    ),
    (
        model(
            [node("ConstantOfShape", "s", "c"), node("Add", "x c")],
            {"s": np.array([2**20, 2**20])},
        ),
        NotImplementedError,
        "makes a constant of 1099511627776 elements, of 16777216 at most",
    ),
    (
        model(
            [node("Range", "a b c", "r"), node("Add", "x r")],
            {"a": np.array(0), "b": np.array(2**40), "c": np.array(1)},
        ),
        NotImplementedError,
        "makes a constant",
    ),
    (
        model([node("Expand", "x s")], {"s": np.array([2**20, 2**24, 1, 4])}),
        (NotImplementedError, FormatError),
        "the Expand",
    ),
    (
        model([node("Dropout", "x", "y m"), node("Not", "m", "z")], outputs=("z",)),
        NotImplementedError,
        "output 'm' that is missing",
    ),
    (
        model([node("Relu", "x")], shape=("N", "steps")),
        ValueError,
        r"any length, 'steps': state one, lengths=\{'steps': 64\}",
    ),
    (
        model([node("Relu", "x")], shape=()),
        NotImplementedError,
        "no axis for the batch",
    ),
    (
        model([node("Relu", "c")], {"c": np.ones((2, 2), "f4")}),
        NotImplementedError,
        "has a constant as input 0",
    ),
]


@pytest.mark.parametrize(("made", "error", "message"), REFUSED)
def test_what_no_layer_computes_is_refused_in_words(made, error, message):
    with pytest.raises(error, match=message):
        from_onnx(made)


def test_lengths_are_stated_by_name():
    made = model([node("Relu", "x")], shape=("N", "steps", 3))
    assert from_onnx(made, lengths={"steps": 7}, name="mine").input_shape == (
        None,
        7,
        3,
    )
    with pytest.raises(ValueError, match="'step', but axes of any length are: steps"):
        from_onnx(made, lengths={"step": 7})
    with pytest.raises(TypeError, match="lengths maps names"):
        from_onnx(made, lengths=7)


# Of models


def residual():
    x = nn.Input((8, 8, 3))
    y = nn.BatchNormalization()(nn.Conv2D(4, 3, padding="same", use_bias=False)(x))
    z = nn.Conv2D(4, 3, padding="same", activation="relu")(nn.ReLU()(y))
    y = nn.GlobalAveragePooling2D()(nn.Add()([y, z]))
    return nn.Model(x, nn.Dense(5)(y))


def attention():
    x = nn.Input((6,), dtype="int32")
    y = nn.Embedding(9, 8)(x)
    y = nn.LayerNormalization()(y + nn.MultiHeadAttention(2, 4)(y, y))
    y = nn.Add()([y, nn.Dense(8)(nn.Dense(16, "gelu")(y))])
    return nn.Model(x, nn.Dense(3)(nn.GRU(4)(y)))


@pytest.mark.parametrize("make", [residual, attention])
def test_an_exported_model_comes_back_and_trains_on(make, tmp_path):
    ours, path = make(), tmp_path / "m.onnx"
    ours.export(path)
    found = from_onnx(path)
    x = samples(ours, 16, classes=9)
    assert_same(predicted(found, x), predicted(ours, x))
    assert found.count_params() == ours.count_params()
    assert len(found.trainable_weights) == len(ours.trainable_weights)

    y = np.arange(16) % 3
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for model in (ours, found):
        model.compile(nn.SGD(0.1), loss)
        history = model.fit(x[0], y, epochs=4, batch_size=8, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    assert losses[1][-1] < losses[1][0]


def test_fine_tuning_stays_within_a_limit_and_is_saved(tmp_path):
    ours, path = residual(), tmp_path / "m.onnx"
    ours.export(path)
    found = from_onnx(path)
    found.layers[1].trainable = False
    found.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
    limit = found.plan(16).peak_bytes + 2**16  # and samples
    frozen = found.layers[1].get_weights()[0]
    found.close()
    mc.config.set_memory_limit("/CPU:0", limit)
    found.fit(samples(ours, 16)[0], np.arange(16) % 5, epochs=2, verbose=0)
    assert mc.config.get_memory_info("/CPU:0")["peak"] <= limit
    np.testing.assert_array_equal(found.layers[1].get_weights()[0], frozen)
    found.save(tmp_path / "m.memcfg")
    again = nn.models.load_model(tmp_path / "m.memcfg")
    x = samples(ours)
    assert_same(predicted(again, x), predicted(found, x), 0)


def test_int8_is_read_and_trained_through_its_rounding(tmp_path):
    ours, path = residual(), tmp_path / "m.onnx"
    x = samples(ours, 16)
    ours.export(path, quantize="int8", calibration_data=x[0])
    found = from_onnx(path)
    assert_same(predicted(found, x), reference(path, *x), 1e-4)
    found.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
    y = np.arange(16) % 5
    losses = found.fit(x[0], y, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert len(found.trainable_weights) == 6
