"""Layers that are made of several ops, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
BATCH = 3


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def predicted(layer, x, draw=True):
    """What a layer makes of samples, and its weights, which are drawn anew."""
    start = nn.Input(x.shape[1:])
    model = nn.Model(start, layer(start))
    weights = [samples(*w.shape, seed=i + 1) for i, w in enumerate(model.get_weights())]
    if draw:
        model.set_weights(weights)
    y = model.predict(x, verbose=0)
    assert (
        y.shape[1:] == model.output_shape[1:] if hasattr(model, "output_shape") else 1
    )
    model.close()
    return y, weights


@pytest.mark.parametrize(
    ("equation", "shape", "output", "bias"),
    [
        ("ab,bc->ac", (4,), 5, "c"),
        ("abc,cx->abx", (2, 4), (None, 5), "x"),
        ("abc,cde->abde", (2, 4), (2, 3, 5), "de"),
        ("abc,cde->abde", (2, 4), (None, 3, 5), "e"),
        ("abcd,cde->abe", (2, 3, 4), (None, 5), None),
        ("abc,bcx->abx", (2, 4), (None, 5), "bx"),
        ("abc,bd->acd", (2, 4), (None, 5), "c"),
        ("abc,cd->ad", (2, 4), 5, "d"),
        ("abc,cd->adb", (2, 4), (5, None), "d"),
        ("...x,xy->...y", (2, 3, 4), 5, "y"),
        ("ab...,bc->ac...", (4, 2, 3), 5, "c"),
        ("abc,c->abc", (2, 4), (None, None), None),
    ],
)
def test_products_by_einsteins_convention(equation, shape, output, bias):
    x = samples(BATCH, *shape)
    y, (kernel, *biases) = predicted(
        nn.EinsumDense(equation, output, bias_axes=bias), x
    )
    wanted = np.einsum(equation, x, kernel)
    if bias:
        tail = biases[0].ndim
        assert biases[0].shape[-1:] in ((1,), wanted.shape[-1:])
        if equation.endswith("..."):
            tail = wanted.ndim - 1
            biases[0] = biases[0].reshape(-1, *(1 for _ in range(tail - 1)))
        wanted = wanted + biases[0]
        assert tail <= wanted.ndim
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "output", "message"),
    [
        ("abc,cd", 5, "must be like"),
        ("abc,cx->abxx", (None, 5), "twice"),
        ("abc,cd->abe", (None, 5), "'e' in the output alone"),
        ("abc,ce->ab", (None,), "'e' in the kernel alone"),
        ("...c,cd->d...", 5, "same side"),
        ("abc,cd->bad", (None, 5), "the batch first"),
        ("abc,cx->abx", 5, "an output of 2 axes"),
        ("abc,cx->abx", (3, 5), "axis 'b' of length 2 and 3"),
        ("ab,bc->ac", 5, r"not of an input of shape \(None, 2, 4\)"),
    ],
)
def test_an_equation_that_does_not_fit_says_why(equation, output, message):
    with pytest.raises(ValueError, match=message):
        nn.EinsumDense(equation, output)(nn.Input((2, 4)))


def test_a_kernel_is_drawn_by_the_inputs_of_its_units():
    layer = nn.EinsumDense("abc,cde->abde", (None, 8, 16))
    layer(nn.Input((2, 512)))
    bound = np.sqrt(6 / (512 + 8 * 16))
    kernel = layer.get_weights()[0]
    assert 0.98 * bound < np.abs(kernel).max() <= bound


@pytest.mark.parametrize("axis", [-1, 1, (1, 2), [-1, 1]])
def test_divisions_by_norms(axis):
    x = samples(BATCH, 4, 5)
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    y, (scale,) = predicted(nn.RMSNormalization(axis, epsilon=0.1), x)
    places = sorted(each % 3 for each in axes)
    wide = scale.reshape([n if i in places else 1 for i, n in enumerate(x.shape)])
    wanted = x / np.sqrt((x**2).mean(axes, keepdims=True) + 0.1) * wide
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    y, _ = predicted(nn.UnitNormalization(axis), x)
    length = np.sqrt((x**2).sum(axes, keepdims=True))
    np.testing.assert_allclose(y, x / length, rtol=1e-5, atol=1e-6)
    zeros = np.zeros_like(x)
    np.testing.assert_array_equal(predicted(nn.UnitNormalization(axis), zeros)[0], 0)


@pytest.mark.parametrize("kind", [nn.RMSNormalization, nn.UnitNormalization])
@pytest.mark.parametrize("axis", [0, 3, (1, 1), ()])
def test_axes_are_those_of_a_sample(kind, axis):
    with pytest.raises(ValueError, match="names no axes of a sample"):
        kind(axis)(nn.Input((4, 5)))


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=2
    )
)
@settings(max_examples=25, deadline=None)
def test_adaptive_windows(sizes):
    lengths, counts = zip(*sizes, strict=True)
    x = samples(2, *lengths, 3)
    rank = len(lengths)
    for name, how in (("Average", np.mean), ("Max", np.max)):
        layer = getattr(nn, f"Adaptive{name}Pooling{rank}D")(counts)
        wanted = x
        for axis, count in enumerate(counts, 1):
            length = wanted.shape[axis]
            parts = [
                how(
                    wanted.take(
                        range(i * length // count, -(-(i + 1) * length // count)), axis
                    ),
                    axis,
                )
                for i in range(count)
            ]
            wanted = np.stack(parts, axis)
        np.testing.assert_allclose(predicted(layer, x)[0], wanted, rtol=1e-5, atol=1e-6)


def test_heads_that_share_keys_and_values():
    """A head of the query attends to the keys of its group."""
    x = samples(BATCH, 5, 6)
    start = nn.Input((5, 6))
    layer = nn.GroupQueryAttention(4, 6, 2, use_bias=False)
    model = nn.Model(start, layer(start, start, use_causal_mask=True))
    weights = [samples(*w.shape, seed=i) / 2 for i, w in enumerate(layer.get_weights())]
    model.set_weights(weights)
    q, k, v = (np.einsum("bsf,fhd->bhsd", x, w) for w in weights[:3])
    k, v = (np.repeat(each, 3, axis=1) for each in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 2
    scores = np.where(np.tri(5) > 0, scores, -np.inf)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    wanted = np.einsum("bhqk,bhkd,hdf->bqf", share, v, weights[3])
    np.testing.assert_allclose(
        model.predict(x, verbose=0), wanted, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match=r"num_query_heads \(5\) must be a multiple"):
        nn.GroupQueryAttention(4, 5, 2)


def test_a_function_is_a_layer():
    x = samples(BATCH, 4)

    def shifted(x, by, training=None):
        return x + (2 * by if training else by)

    start = nn.Input((4,))
    for training, by in ((None, 3.0), (True, 6.0)):
        layer = nn.Lambda(shifted, output_shape=(4,), arguments={"by": 3.0})
        y = layer(start, training=training)
        found = nn.Model(start, y).predict(x, verbose=0)
        np.testing.assert_allclose(found, x + by, rtol=1e-6)
    assert layer.get_config()["arguments"] == {"by": 3.0}
    with pytest.raises(ValueError, match=r"shape \(4,\), and output_shape says \(5,\)"):
        nn.Lambda(shifted, 5, arguments={"by": 1.0})(start)
    with pytest.raises(TypeError, match="must be a function"):
        nn.Lambda(3)


def test_a_function_of_a_mask_and_a_mask_of_a_function():
    seen = []

    def function(x, mask=None):
        seen.append(mask)
        return x * 2

    h = nn.Masking()(nn.Input((5, 3)))
    y = nn.Lambda(function, mask=lambda _, mask: mask)(h)
    assert seen[-1].shape == (None, 5)
    kept = nn.GlobalAveragePooling1D()(y)
    lost = nn.GlobalAveragePooling1D()(nn.Lambda(lambda x: x * 2)(h))
    x = samples(BATCH, 5, 3)
    x[:, 3:] = 0
    for end, count in ((kept, 3), (lost, 5)):
        found = nn.Model(h.node.inputs[0], end).predict(x, verbose=0)
        np.testing.assert_allclose(found, 2 * x.sum(1) / count, rtol=1e-5, atol=1e-6)


def doubled(x):
    return x * 2


def test_a_function_is_saved_by_its_name(tmp_path):
    x = samples(BATCH, 4)
    model = nn.Sequential([nn.Input((4,)), nn.Lambda(doubled), nn.layers.Identity()])
    path = tmp_path / "model.memcfg"
    model.save(path)
    loaded = nn.models.load_model(path, custom_objects={"doubled": doubled})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), 2 * x)
    with pytest.raises(TypeError, match="a lambda has no name to load it by"):
        nn.Sequential([nn.Input((4,)), nn.Lambda(lambda x: x)]).save(path)


def test_a_wrapper_of_ones_own_trains_its_layer(tmp_path):
    class Residual(nn.Wrapper):
        def __init__(self, layer, scale=0.5, name=None):
            super().__init__(layer, name=name)
            self.scale = scale

        def call(self, x):
            return x + self.scale * self.layer(x)

    x = samples(BATCH, 4)
    y, (kernel, bias) = predicted(Residual(nn.Dense(4)), x)
    np.testing.assert_allclose(y, x + 0.5 * (x @ kernel + bias), rtol=1e-5, atol=1e-6)
    model = nn.Sequential([nn.Input((4,)), Residual(nn.Dense(4)), nn.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(x, np.ones(BATCH), verbose=0)
    assert not any(map(np.array_equal, before, model.get_weights()))
    path = tmp_path / "model.memcfg"
    model.save(path)
    loaded = nn.models.load_model(path, custom_objects={"Residual": Residual})
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    with pytest.raises(TypeError, match="Wrapper expects a layer, got the class Dense"):
        nn.Wrapper(nn.Dense)


def test_a_kernel_is_divided_by_its_largest_singular_value():
    x, y = samples(8, 5), samples(8, 4, seed=1)
    layer = nn.SpectralNormalization(nn.Dense(4, use_bias=False), power_iterations=30)
    model = nn.Sequential([nn.Input((5,)), layer])
    model.compile(nn.SGD(0.3), "mse")
    for _ in range(3):
        u, kernel = model.get_weights()
        model.train_on_batch(x, y)
        new_u, found = model.get_weights()
        value = np.linalg.svd(kernel)[1][0]
        held = kernel / value
        slope = 2 * x.T @ (x @ held - y) / y.size
        np.testing.assert_allclose(found, held - 0.3 * slope, rtol=1e-4, atol=1e-5)
        right = np.linalg.svd(kernel)[2][:1]
        np.testing.assert_allclose(abs(new_u @ right.T), 1, rtol=1e-4)
        assert not np.array_equal(u, new_u)
    np.testing.assert_allclose(model.predict(x, verbose=0), x @ found, rtol=1e-4)
    np.testing.assert_array_equal(model.get_weights()[1], found)  # as it was


def test_a_kernel_of_zeros_stays_and_so_does_the_vector():
    layer = nn.SpectralNormalization(nn.Dense(4, kernel_initializer="zeros"))
    model = nn.Sequential([nn.Input((5,)), layer])
    model.compile(nn.SGD(0.3), "mse")
    u = model.get_weights()[0]
    x, y = samples(8, 5), samples(8, 4, seed=1)
    model.train_on_batch(x, y)
    found = model.get_weights()
    np.testing.assert_array_equal(found[0], u)
    np.testing.assert_allclose(found[1], 0.6 * x.T @ y / y.size, rtol=1e-4, atol=1e-6)


def test_policies_agree_on_normalized_kernels():
    def trained(policy):
        nn.set_random_seed(4)
        shared = nn.SpectralNormalization(nn.Conv1D(6, 3, padding="same"))
        frozen = nn.SpectralNormalization(nn.Dense(6), trainable=False)
        start = nn.Input((7, 6))
        h = frozen(shared(nn.ReLU()(shared(start))))
        model = nn.Model(start, nn.Dense(1)(nn.Flatten()(h)))
        model.compile("adam", "mse", memory=policy)
        for _ in range(3):
            model.train_on_batch(samples(8, 7, 6), samples(8, 1, seed=2))
        report = model.memory_report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        return model.get_weights()

    wanted = trained("keep_all")
    for policy in ("share", "sqrt_checkpoint", "auto"):
        assert all(map(np.array_equal, trained(policy), wanted))


def test_a_layer_without_a_kernel_has_none_to_normalize():
    with pytest.raises(ValueError, match="has no weight named 'kernel'"):
        nn.SpectralNormalization(nn.BatchNormalization())(nn.Input((4,)))
