"""Additions of low rank to frozen weights: values, bytes, gradients, refusals."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn


def draw(*shape):
    return np.float32(np.random.default_rng(sum(shape)).normal(size=shape))


LAYERS = {
    "dense": lambda **o: nn.Dense(5, activation="tanh", **o),
    "einsum": lambda **o: nn.EinsumDense("bi,ijk->bjk", (3, 2), bias_axes="jk", **o),
    "embedding": lambda **o: nn.Embedding(7, 4, **o),
}


def input_of(name):
    if name == "embedding":
        return np.int32(np.random.default_rng(0).integers(0, 7, (6, 3)))
    return draw(6, 4)


def set_parts(layer):
    """Give the small weights values that are not 0; return the whole addition."""
    a, b = layer.weights[-2:]
    a.assign(draw(*a.shape))
    b.assign(draw(*b.shape))
    scale = layer.lora_alpha / layer.lora_rank
    return scale * np.tensordot(a.numpy(), b.numpy(), 1)


@pytest.mark.parametrize("name", LAYERS)
@given(rank=st.integers(1, 4), alpha=st.sampled_from([None, 0.5, 3]))
@settings(max_examples=6, deadline=None)
def test_the_result_is_that_of_the_sum(name, rank, alpha):
    x = input_of(name)
    layer, plain = LAYERS[name](lora_rank=rank, lora_alpha=alpha), LAYERS[name]()
    for each in (layer, plain):
        each(x)
    whole = set_parts(layer)
    plain.set_weights([layer.weights[0].numpy() + whole, *layer.get_weights()[1:-2]])
    np.testing.assert_allclose(layer(x), plain(x), rtol=1e-4, atol=1e-5)
    assert layer.lora_rank == rank
    assert layer.lora_alpha == (rank if alpha is None else alpha)
    frozen, *others = layer.weights
    assert not frozen.trainable
    assert all(each.trainable for each in others)


def model_of():
    nn.utils.set_random_seed(0)
    layers = [nn.Input((32,)), nn.Dense(64, activation="relu"), nn.Dense(4)]
    model = nn.Sequential(layers)
    model.compile(nn.Adam(0.01), "mse")
    return model


def bytes_of(model, role):
    graph = model.graph(8)
    tensors = [each for each in graph.tensors if each.role == role]
    return sum(each.nbytes for each in tensors if ":new" not in each.name)


def test_a_trained_model_is_adapted_and_holds_less_state():
    x, y = draw(24, 32), draw(24, 4)
    model = model_of()
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    first, last = model.layers
    before = model.predict(x, verbose=0)
    parameters = 32 * 64 + 64 + 64 * 4 + 4
    assert bytes_of(model, "optimizer_state") == 2 * 4 * parameters
    kernel, bias = first.get_weights()
    first.enable_lora(2)
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    model.compile(nn.Adam(0.01), "mse")
    small = 2 * (32 + 64)
    assert bytes_of(model, "parameter") == 4 * (parameters + small)
    state = 2 * 4 * (parameters - 32 * 64 + small)
    assert bytes_of(model, "optimizer_state") == state
    losses = model.fit(x, y, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(first.get_weights()[0], kernel)
    assert not np.array_equal(first.get_weights()[1], bias)
    assert first.weights[-1].numpy().any()
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert last.lora_rank is None


def test_files_and_copies(tmp_path):
    x, y = draw(8, 32), draw(8, 4)
    model = model_of()
    model.layers[0].enable_lora(3, lora_alpha=6)
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=2, verbose=0)
    wanted = model.predict(x, verbose=0)
    model.save(tmp_path / "model.memcfg")
    for other in (
        nn.models.load_model(tmp_path / "model.memcfg"),
        copy.deepcopy(model),
    ):
        layer = other.layers[0]
        assert (layer.lora_rank, layer.lora_alpha) == (3, 6.0)
        np.testing.assert_array_equal(other.predict(x, verbose=0), wanted)
        assert not layer.kernel.trainable
    again = nn.Dense.from_config(model.layers[0].get_config())
    assert again.lora_rank == 3


def test_gradients_are_of_the_small_weights():
    layer = nn.Dense(3, use_bias=False, lora_rank=2)
    x = draw(5, 4)
    layer(x)
    set_parts(layer)

    @mc.function
    def slopes(x):
        with mc.GradientTape() as tape:
            loss = nn.ops.sum(nn.ops.square(layer(x)))
        return tape.gradient(loss, layer.trainable_weights)

    kernel, a, b = layer.get_weights()
    outer = 2 * (x @ (kernel + a @ b))
    found = slopes(x)
    np.testing.assert_allclose(found[0], x.T @ outer @ b.T, rtol=1e-4)
    np.testing.assert_allclose(found[1], (x @ a).T @ outer, rtol=1e-4)


def test_refusals_leave_the_layer():
    layer = nn.Dense(3)
    with pytest.raises(ValueError, match="needs weights: call the layer"):
        layer.enable_lora(2)
    model = nn.Sequential([nn.Input((4,)), layer])
    with pytest.raises(ValueError, match="lora_rank must be positive"):
        layer.enable_lora(0)
    assert len(layer.weights) == 2
    assert not layer.lora_enabled
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="its rank is 2"):
        layer.enable_lora(2)
    bound = nn.Dense(3, kernel_constraint="non_neg")
    bound(nn.Input((2,)))
    with pytest.raises(ValueError, match="leave its constraint out"):
        bound.enable_lora(1)
    inner = nn.Dense(3)
    first = nn.Sequential([nn.Input((4,)), inner])
    first.predict(draw(2, 4), verbose=0)
    second = nn.Sequential([nn.Input((4,)), first, nn.Dense(1)])
    before = second.predict(draw(2, 4), verbose=0)
    with pytest.raises(RuntimeError, match="it belongs to several models"):
        inner.enable_lora(1)
    np.testing.assert_array_equal(second.predict(draw(2, 4), verbose=0), before)
    with pytest.raises(ValueError, match="pass lora_rank, too"):
        nn.Dense(3, lora_alpha=2)
    assert model.predict(draw(2, 4), verbose=0).shape == (2, 3)
