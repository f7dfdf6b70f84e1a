"""Models as ONNX files: batches and lengths of any size, weights apart, int8."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from onnx_runs import assert_same, node_types, onnx, predicted, reference, samples

import memcfg as mc
from memcfg.errors import GraphError, MissingDependencyError

nn = mc.nn


def convolutional(**conv):
    return nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(6, 3, padding="same", **conv),
            nn.BatchNormalization(),
            nn.ReLU(),
            nn.MaxPooling2D(),
            nn.Conv2D(4, 3, activation="gelu"),
            nn.GlobalAveragePooling2D(),
            nn.Dense(5, activation="softmax"),
        ]
    )


def test_images_are_transposed_once(tmp_path):
    model, path = convolutional(), tmp_path / "m.onnx"
    model.export(path)
    assert node_types(path) == [
        *("Transpose", "Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "Gelu"),
        *("GlobalAveragePool", "Flatten", "Gemm", "Softmax"),
    ]
    for count in (1, 4):
        x = samples(model, count)
        assert_same(reference(path, *x), predicted(model, x))


def test_inputs_and_outputs_have_the_models_names_and_any_batch(tmp_path):
    a, b = nn.Input((4,), name="left"), nn.Input((4,), name="right")
    model = nn.Model(
        {"left": a, "right": b}, {"sum": a + b, "same": nn.Dense(2)(a), "in": b}
    )
    path = tmp_path / "m.onnx"
    model.export(path)
    graph = onnx.load(path).graph
    assert [each.name for each in graph.input] == ["left", "right"]
    assert [each.name for each in graph.output] == ["in", "same", "sum"]  # sorted
    shape = graph.output[0].type.tensor_type.shape
    assert [each.dim_param or each.dim_value for each in shape.dim] == ["batch", 4]
    x = [np.float32([[1, 2, 3, 4]]), np.float32([[5, 6, 7, 8]])]
    found = dict(zip(("in", "same", "sum"), reference(path, *x), strict=True))
    expected = model.predict({"left": x[0], "right": x[1]}, verbose=0)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def sequences():
    x = nn.Input((None,), dtype="int32")
    y = nn.Embedding(20, 8)(x)
    y = nn.Add()([y, nn.PositionEmbedding(200)(y)])
    y = nn.Add()([y, nn.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)])
    y = nn.Bidirectional(nn.LSTM(3, return_sequences=True))(nn.LayerNormalization()(y))
    return nn.Model(x, nn.Dense(4)(y))


def test_axes_of_any_length_stay_such(tmp_path):
    model, path = sequences(), tmp_path / "m.onnx"
    model.export(path)
    for count, length in ((2, 5), (3, 11)):
        x = np.random.default_rng(length).integers(0, 20, (count, length))
        x = x.astype(np.int32)
        assert_same(reference(path, x), [model.predict(x, verbose=0)])


def test_sizes_may_be_fixed(tmp_path):
    model, path = sequences(), tmp_path / "m.onnx"
    model.export(path, batch_size=2, lengths=7)
    shape = onnx.load(path).graph.input[0].type.tensor_type.shape
    assert [each.dim_value for each in shape.dim] == [2, 7]
    x = np.arange(14, dtype=np.int32).reshape(2, 7)
    assert_same(reference(path, x), [model.predict(x, verbose=0)])


def test_masked_steps_keep_the_state(tmp_path):
    x = nn.Input((6,), dtype="int32")
    y = nn.Embedding(9, 4, mask_zero=True)(x)
    y, *states = nn.LSTM(3, return_sequences=True, return_state=True)(y)
    model = nn.Model(x, [nn.GRU(2)(y), nn.SimpleRNN(2)(y), *states])
    path = tmp_path / "m.onnx"
    model.export(path)
    x = np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 1], [0, 2, 0, 3, 0, 0]], np.int32)
    assert node_types(path).count("Scan") == 3
    assert_same(reference(path, x), predicted(model, [x]))


def test_unmasked_steps_are_nodes_of_onnx(tmp_path):
    x = nn.Input((6, 3))
    y, *states = nn.LSTM(4, return_sequences=True, return_state=True)(x)
    y = nn.GRU(2, return_sequences=True)(y, initial_state=states[0][:, :2])
    model = nn.Model(x, [nn.SimpleRNN(2, go_backwards=True)(y), *states])
    path = tmp_path / "m.onnx"
    model.export(path)
    assert {"LSTM", "GRU", "RNN"} <= {*node_types(path)}
    assert "Scan" not in node_types(path)
    x = samples(model)
    assert_same(reference(path, *x), predicted(model, x))


def test_weights_may_lie_in_a_second_file(tmp_path):
    model = nn.Sequential([nn.Input((40,)), nn.Dense(50), nn.Dense(3)])
    path = tmp_path / "m.onnx"
    model.export(path, external_data=True)
    assert path.stat().st_size < 2_000
    assert (tmp_path / "m.onnx.data").stat().st_size == 8192  # pages of 40 * 50 floats
    x = samples(model)
    assert_same(reference(path, *x), predicted(model, x))
    assert_same(predicted(nn.models.from_onnx(path), x), predicted(model, x))


def test_a_frozen_or_trained_model_exports_its_weights_of_now(tmp_path):
    model, path = convolutional(), tmp_path / "m.onnx"
    model.compile("adam", "sparse_categorical_crossentropy")
    x = samples(model, 8)
    model.fit(x[0], np.arange(8) % 5, epochs=2, verbose=0)
    model.export(path)
    assert_same(reference(path, *x), predicted(model, x))


def test_int8_rounds_products_and_keeps_what_they_mean(tmp_path):
    model, path = convolutional(use_bias=False), tmp_path / "m.onnx"
    x = samples(model, 40)
    model.export(path, quantize="int8", calibration_data=x[0])
    kinds = node_types(path)
    assert "BatchNormalization" not in kinds  # it is part of the convolution
    assert kinds.count("QuantizeLinear") == 3
    (found,), (expected,) = reference(path, *x), predicted(model, x)
    assert 0 < np.abs(found - expected).max() < 0.02  # of probabilities
    stored = {each.name: each for each in onnx.load(path).graph.initializer}
    assert sum(each.data_type == onnx.TensorProto.INT8 for each in stored.values()) >= 3


def test_int8_of_numbers_that_are_whole_is_exact(tmp_path):
    """Weights and samples that int8 has: the rounded products are those of floats."""
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    kernel = np.float32([[127, -127, 1], [2, 0, -127], [3, 5, 7], [-127, 127, 127]])
    model.set_weights([kernel, np.float32([1, -2, 0])])
    x = np.float32([[255, 0, 17, 3], [0, 1, 2, 250]])
    path = tmp_path / "m.onnx"
    model.export(path, quantize="int8", calibration_data=x)
    np.testing.assert_allclose(reference(path, x)[0], x @ kernel + [1, -2, 0], 1e-6)


@pytest.mark.parametrize("products", ["float32", "int8"])
@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127), ("int4", 7)])
def test_integers_of_a_model_are_those_of_the_file(tmp_path, dtype, largest, products):
    layers = [nn.Conv2D(6, 3, activation="relu"), nn.Flatten(), nn.Dense(5)]
    plain = nn.Sequential([nn.Input((5, 5, 3)), *layers])
    model = mc.compression.quantize(plain, dtype, products=products)
    path, x = tmp_path / "m.onnx", samples(model, 40)
    model.export(path)
    whole = mc.compression.strip(model)
    assert_same(reference(path, *x), predicted(whole, x))
    model.export(path, quantize="int8", calibration_data=x[0])
    (found,), (expected,) = reference(path, *x), predicted(model, x)
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    stored = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(path).graph.initializer
        if each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1
    ]
    kernel, matrix = model.layers[0].kernel.numpy(), model.layers[2].kernel.numpy()
    wanted = [np.moveaxis(kernel, (3, 2), (0, 1)), matrix]
    for own, weight, axes in zip(stored, wanted, ((1, 2, 3), 0), strict=True):
        assert np.abs(own).max() == largest
        steps = np.abs(weight).max(axes, keepdims=True) / np.float32(largest)
        np.testing.assert_allclose(own * steps, weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("dtype", "largest"), [(None, 64), ("int8", 64), ("int4", 7)])
def test_weights_of_7_bits(tmp_path, dtype, largest):
    layers = [nn.Conv2D(6, 3, activation="relu"), nn.Flatten(), nn.Dense(5)]
    model = nn.Sequential([nn.Input((5, 5, 3)), *layers])
    if dtype is not None:
        model = mc.compression.quantize(model, dtype)
    path, x = tmp_path / "m.onnx", samples(model, 40)
    model.export(path, quantize="int8", calibration_data=x[0], reduce_range=True)
    stored = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(path).graph.initializer
        if each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1
    ]
    assert [np.abs(each).max() for each in stored] == [largest] * 2
    (found,), (expected,) = reference(path, *x), predicted(model, x)
    assert 0 < np.abs(found - expected).max() < 0.04 * np.abs(expected).max()
    again = predicted(nn.models.from_onnx(path), x)[0]
    assert np.abs(again - found).max() < 0.02 * np.abs(found).max()


def test_calibration_stays_within_the_limit(tmp_path):
    (cpu,) = mc.config.list_physical_devices("CPU")
    del cpu
    model = nn.Sequential([nn.Input((100,)), nn.Dense(100), nn.Dense(3)])
    x = np.ones((64, 100), np.float32)
    with pytest.raises(mc.errors.ResourceExhaustedError), mc.budget("64KiB"):
        model.export(tmp_path / "m.onnx", quantize="int8", calibration_data=x)


ARGUMENTS = [
    ({"format": "tf_saved_model"}, NotImplementedError, "in the format 'onnx'"),
    ({"input_signature": ["x"]}, ValueError, "batch_size and lengths"),
    ({"quantize": "int4"}, ValueError, "None or 'int8', got 'int4'"),
    ({"quantize": "int8"}, ValueError, "needs calibration_data"),
    ({"calibration_data": [1.0]}, ValueError, "needs calibration_data"),
    ({"reduce_range": True}, ValueError, "reduce_range=True needs quantize='int8'"),
    ({"reduce_range": 1}, TypeError, "reduce_range is True or False"),
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"lengths": 4}, ValueError, "lengths is for axes of None"),
    (
        {"quantize": "int8", "calibration_data": np.full((2, 4), np.nan, "f4")},
        ValueError,
        "NaN or infinity",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), ARGUMENTS)
def test_arguments_are_checked(tmp_path, options, error, message):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    path = tmp_path / "m.onnx"
    with pytest.raises(error, match=message):
        model.export(path, **options)
    assert not path.exists()


def test_a_name_ends_in_onnx(tmp_path):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    with pytest.raises(ValueError, match=r"ends in '\.onnx'"):
        model.export(tmp_path / "m")
    with pytest.raises(RuntimeError, match="shapes of"):
        nn.Sequential([nn.Dense(3)]).export(tmp_path / "m.onnx")


def test_layers_that_no_file_describes_are_named(tmp_path):
    path = tmp_path / "m.onnx"
    x = nn.Input((5, 3), batch_size=2)
    stateful = nn.Model(x, nn.LSTM(4, stateful=True, name="memory")(x))
    with pytest.raises(GraphError, match=r"'memory' \(LSTM\) keeps a state"):
        stateful.export(path)
    x = nn.Input((1,), dtype="string")
    looked = nn.StringLookup(vocabulary=["a", "b"], name="words")(x)
    with pytest.raises(GraphError, match=r"'words' \(StringLookup\) prepares data"):
        nn.Model(x, nn.Embedding(4, 2)(looked)).export(path)
    x = nn.Input((3, 3))
    with pytest.raises(
        GraphError, match=r"op 'inverse/.*' \(matrix_inverse\) of layer"
    ):
        nn.Model(x, nn.Lambda(nn.ops.inv, name="inverse")(x)).export(path)
    assert not path.exists()


def test_bfloat16_is_exported_as_float32_and_said(tmp_path):
    x = nn.Input((6,))
    model = nn.Model(x, nn.Dense(3, dtype="mixed_bfloat16")(x))
    with pytest.warns(RuntimeWarning, match="and its export in float32"):
        model.export(tmp_path / "m.onnx")
    x = samples(model)
    assert_same(reference(tmp_path / "m.onnx", *x), predicted(model, x), 2e-2)


def test_without_onnx_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    for call in (model.export, nn.models.from_onnx):
        with pytest.raises(MissingDependencyError, match=r"pip install memcfg\[onnx\]"):
            call(tmp_path / "m.onnx")
