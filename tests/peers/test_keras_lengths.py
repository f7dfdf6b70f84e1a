"""Models of inputs of any length beside Keras 3: outputs, training, files."""

from __future__ import annotations

import numpy as np
import pytest
from beside_keras import MARKS, OURS, keras

import memcfg as mc

pytestmark = MARKS


def recurrent(k):
    x = k.Input((None,), dtype="int32")
    h = k.layers.Embedding(12, 5, mask_zero=True)(x)
    h = k.layers.Bidirectional(k.layers.GRU(4, return_sequences=True))(h)
    return x, k.layers.LSTM(3)(h)


def convolutional(k):
    x = k.Input((None, 3))
    h = k.layers.Conv1D(6, 3, padding="causal", activation="relu")(x)
    h = k.layers.MaxPooling1D(2)(k.layers.LayerNormalization()(h))
    return x, k.layers.GlobalAveragePooling1D()(h)


def attention(k):
    x = k.Input((None, 6))
    h = k.layers.MultiHeadAttention(2, 4)(x, x)
    h = k.layers.Add()([h, x])
    return x, h[:, -1] + k.layers.GlobalMaxPooling1D()(h)


def images(k):
    x = k.Input((None, None, 3))
    a = k.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    b = k.layers.UpSampling2D()(k.layers.MaxPooling2D()(a))
    return x, k.layers.GlobalAveragePooling2D()(k.layers.Concatenate()([a, b]))


def batches(x, seed):
    rng = np.random.default_rng(seed)
    for length in (4, 8, 6):
        shape = [length if n is None else n for n in x.shape[1:]]
        size = (4, *shape)
        integers = len(shape) == 1
        data = rng.integers(0, 12, size) if integers else rng.normal(size=size)
        yield data.astype("int32" if integers else "float32"), rng.integers(0, 3, 4)


@pytest.mark.parametrize("make", [recurrent, convolutional, attention, images])
def test_models_of_any_length(make, tmp_path):
    rng, both = np.random.default_rng(7), []
    for k in (OURS, keras):
        x, y = make(k)
        both.append(k.Model(x, k.layers.Dense(3)(y)))
    ours, theirs = both
    assert ours.input_shape == theirs.input_shape
    if make is not attention:  # whose operators are no layers in Keras
        shapes = [[layer.output.shape for layer in each.layers] for each in both]
        assert shapes[0] == shapes[1]
    weights = [rng.normal(size=w.shape, scale=0.4) for w in theirs.get_weights()]
    for each, k in zip(both, (OURS, keras), strict=True):
        each.set_weights(weights)
        loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(k.optimizers.SGD(0.1), loss)
    for data, labels in batches(ours.inputs[0], 3):
        np.testing.assert_allclose(
            ours.predict(data, verbose=0), theirs.predict(data, verbose=0), 1e-4, 1e-5
        )
        losses = [each.train_on_batch(data, labels) for each in both]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for a, b in zip(*(each.get_weights() for each in both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    theirs.save(tmp_path / "theirs.keras")
    read = mc.nn.models.load_model(tmp_path / "theirs.keras")
    assert read.input_shape == theirs.input_shape
    for data, _ in batches(ours.inputs[0], 4):
        np.testing.assert_allclose(
            read.predict(data, verbose=0), theirs.predict(data, verbose=0), 1e-4, 1e-5
        )
    if make is not attention:  # whose operators are layers of our own
        ours.save(tmp_path / "ours.keras")
        back = keras.models.load_model(tmp_path / "ours.keras")
        np.testing.assert_allclose(
            back.predict(data, verbose=0), ours.predict(data, verbose=0), 1e-4, 1e-5
        )
    ours.close()
