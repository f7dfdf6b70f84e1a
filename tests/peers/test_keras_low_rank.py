"""Additions of low rank beside Keras 3 on PyTorch: values and ten steps."""

from __future__ import annotations

import os

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]


def model_of(library, rank, alpha):
    layers = library.layers
    options = {"kernel_regularizer": "l2"}
    if alpha is None:  # Keras's constructors forget the scale
        options["lora_rank"] = rank
    x = library.Input((3,), dtype="int32")
    adapted = [
        layers.Embedding(6, 4),
        layers.EinsumDense("bti,ijk->btjk", (3, 2, 3), bias_axes="k", **options),
        layers.Flatten(),
        layers.Dense(5, activation="tanh", **options),
        layers.Dense(2),
    ]
    y = x
    for layer in adapted:
        y = layer(y)
    model = library.Model(x, y)
    for layer in adapted:
        if not getattr(layer, "lora_enabled", True):
            layer.enable_lora(rank, lora_alpha=alpha)
    return model


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("rank", "alpha"), [(1, None), (2, 0.5)])
def test_ten_steps(rank, alpha, optimizer, request):
    random = np.random.default_rng(0)
    x = random.integers(0, 6, (50, 3)).astype(np.int32)
    y = np.float32(random.normal(size=(50, 2)))
    ours, theirs = (model_of(each, rank, alpha) for each in (mc.nn, keras))
    request.addfinalizer(ours.close)
    names = [each.name for each in theirs.weights]
    assert [each.name for each in ours.weights] == names
    start = [np.float32(random.normal(size=each.shape) / 2) for each in theirs.weights]
    for model in (ours, theirs):
        model.set_weights(start)
        model.compile(optimizer, "mse")
    np.testing.assert_allclose(
        ours.predict(x, verbose=0), theirs.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )
    logs = [
        model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0).history
        for model in (ours, theirs)
    ]
    np.testing.assert_allclose(logs[0]["loss"], logs[1]["loss"], rtol=1e-4)
    for name, one, two, before in zip(
        names, ours.get_weights(), theirs.get_weights(), start, strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=2e-3, atol=2e-4, err_msg=name)
        frozen = name in ("kernel", "embeddings")
        assert np.array_equal(one, before) == frozen
