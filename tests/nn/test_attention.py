"""Attention layers against NumPy's einsum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
LOSS = nn.SparseCategoricalCrossentropy(from_logits=True)


def randomized(model, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=w.shape).astype("f4") * 0.5 for w in model.get_weights()]
    model.set_weights(weights)
    return [w.astype(np.float64) for w in weights]


def attend(scores, value, mask, causal):
    """Softmax over the last axis, and the mean of values [..., keys, features]."""
    if mask is not None:
        scores = np.where(mask, scores, -1e9)  # a row of them is uniform
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ value, weights


def masked_inputs(rng, batch, steps, features, masked):
    """Sequences, their symbolic tensor's mask, and the mask in NumPy."""
    x = rng.normal(size=(batch, steps, features)).astype("f4")
    mask = np.ones((batch, steps), bool)
    if masked:
        mask[:, 1:] = rng.random((batch, steps - 1)) < 0.6
        x[~mask] = 0
    return x, mask


@given(
    batch=st.integers(1, 3),
    steps=st.integers(1, 6),
    features=st.integers(1, 4),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    switches=st.tuples(*[st.booleans()] * 3),
)
@settings(max_examples=25, deadline=None)
def test_multi_head_attention(batch, steps, features, sizes, switches):
    heads, key_dim, value_dim = sizes
    use_bias, masked, causal = switches
    rng = np.random.default_rng(steps)
    x, mask = masked_inputs(rng, batch, steps, features, masked)
    inputs = nn.Input((steps, features))
    h = nn.Masking()(inputs) if masked else inputs
    layer = nn.MultiHeadAttention(heads, key_dim, value_dim, use_bias=use_bias)
    made = layer(h, h, use_causal_mask=causal)
    model = nn.Model(inputs, made)
    weights = randomized(model)
    kernels, biases = weights, [np.zeros((heads, 1))] * 3 + [0.0]
    if use_bias:
        kernels, biases = weights[::2], weights[1::2]
    q, k, v = (
        np.einsum("btd,dhk->bhtk", x, kernel) + bias[:, None]
        for kernel, bias in zip(kernels[:3], biases[:3], strict=True)
    )
    found = model.predict(x, verbose=0)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(key_dim)
    pairs = mask[:, None, :, None] & mask[:, None, None]  # both steps count
    y, _ = attend(scores, v, pairs, causal)
    wanted = np.einsum("bhtv,hvd->btd", y, kernels[3]) + biases[3]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dot", "scaled", "concat", "additive", "plain"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_one_head(kind, masked, causal):
    rng = np.random.default_rng(3)
    x, mask = masked_inputs(rng, 3, 5, 4, masked)
    inputs = nn.Input((5, 4))
    h = nn.Masking()(inputs) if masked else inputs
    layer = {
        "dot": lambda: nn.Attention(),
        "scaled": lambda: nn.Attention(use_scale=True),
        "concat": lambda: nn.Attention(use_scale=True, score_mode="concat"),
        "additive": lambda: nn.AdditiveAttention(),
        "plain": lambda: nn.AdditiveAttention(use_scale=False),
    }[kind]()
    model = nn.Model(inputs, layer([h, h], use_causal_mask=causal))
    weights = randomized(model)
    pairs = x[:, :, None] + x[:, None].astype(np.float64)
    if kind == "concat":
        scores = weights[1] * np.tanh(weights[0] * pairs).sum(-1)
    elif kind in ("additive", "plain"):
        scores = (np.tanh(pairs) * (weights[0] if weights else 1)).sum(-1)
    else:
        scores = x @ x.swapaxes(-1, -2) * (weights[0] if weights else 1)
    y, _ = attend(scores, x, mask[:, None], causal)
    y = np.where(mask[..., None], y, 0)
    np.testing.assert_allclose(model.predict(x, verbose=0), y, rtol=1e-4, atol=1e-5)


def encoder(dropout):
    nn.set_random_seed(1)
    inputs = nn.Input((6, 8))
    h = nn.Masking()(inputs)
    h = h + nn.MultiHeadAttention(2, 4, dropout=dropout)(h, h)
    h = nn.LayerNormalization()(h)
    h = nn.AdditiveAttention()([h, h])
    h = nn.Attention(use_scale=True, score_mode="concat")([h, h])
    return nn.Model(inputs, nn.Dense(3)(nn.Flatten()(h)))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_policy_trains_to_the_same_bits(dropout):
    rng = np.random.default_rng(0)
    x, _ = masked_inputs(rng, 24, 6, 8, True)
    y = rng.integers(0, 3, 24).astype("i4")
    found = []
    for policy in ("share", "keep_all", "sqrt_checkpoint"):
        model = encoder(dropout)
        model.compile(nn.Adam(0.01), LOSS, memory=policy)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=0)
        report = model.memory_report()
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        found.append((history.history["loss"], *model.get_weights()))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def masked_model(flash, causal, given, dropout):
    """Self-attention of a masked sequence, and attention to it from another."""
    nn.set_random_seed(3)
    x, other, pairs = nn.Input((70, 6)), nn.Input((3, 6)), nn.Input((70, 70))
    h = nn.Masking()(x)
    options = {"dropout": dropout, "flash_attention": flash}
    layer = nn.MultiHeadAttention(2, 5, 3, **options)
    mask = {"attention_mask": pairs} if given else {}
    h = layer(h, h, use_causal_mask=causal, **mask)
    y = nn.MultiHeadAttention(3, 4, **options)(other, h)
    inputs = [x, other, pairs] if given else [x, other]
    return nn.Model(inputs, nn.Dense(3)(nn.Flatten()(y)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_scores_in_blocks_train_as_whole_ones(causal, given, dropout):
    """The same elements are dropped."""
    rng = np.random.default_rng(0)
    x, _ = masked_inputs(rng, 6, 70, 6, True)
    x[:, 0] = 1
    other = rng.normal(size=(6, 3, 6)).astype("f4")
    pairs = (rng.random((6, 70, 70)) < 0.5).astype("f4")
    pairs[:, :, 0] = 1
    y = rng.integers(0, 3, 6).astype("i4")
    inputs = [x, other, pairs] if given else [x, other]
    found, peaks = [], []
    for flash in (False, None):
        model = masked_model(flash, causal, given, dropout)
        model.compile(nn.SGD(0.1), LOSS)
        history = model.fit(inputs, y, batch_size=3, epochs=3, verbose=0, seed=0)
        predicted = model.predict(inputs, verbose=0)
        found.append((history.history["loss"], predicted, *model.get_weights()))
        peaks.append(model.memory_plan.peak_bytes)
        assert model.memory_report().measured_peak_bytes == peaks[-1]
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("policy", ["share", "keep_all", "sqrt_checkpoint"])
def test_bytes_of_scores_in_blocks(policy):
    """A causal block whose scores are 8 MiB for each batch."""
    steps, heads, batch = 512, 4, 2
    scores = batch * heads * steps * steps * 4
    peaks = []
    for flash in (False, None):
        x = nn.Input((steps, 32))
        layer = nn.MultiHeadAttention(heads, 8, flash_attention=flash)
        model = nn.Model(x, nn.Dense(1)(layer(x, x, use_causal_mask=True)))
        model.compile(nn.SGD(0.1), "mse", memory=policy)
        data = np.ones((batch, steps, 32), "f4"), np.ones((batch, steps, 1), "f4")
        model.fit(*data, batch_size=batch, verbose=0)
        peaks.append(model.memory_plan.peak_bytes)
        assert model.memory_report().measured_peak_bytes == peaks[-1]
    assert peaks[0] > 2 * scores  # weights, and their gradient
    assert peaks[1] < scores / 2


def test_scores_are_whole_where_somebody_sees_them():
    """Returned, or asked for."""

    def has_blocks(layer, **call):
        x = nn.Input((4, 6))
        found = layer(x, x, **call)
        y = found[0] if call.get("return_attention_scores") else found
        model = nn.Model(x, nn.Dense(1)(y))
        model.compile("sgd", "mse")
        graph = model.graph(2)
        assert any(op.type == "softmax" for op in graph.ops) != any(
            op.type == "scaled_dot_product_attention" for op in graph.ops
        )
        return all(op.type != "softmax" for op in graph.ops)

    assert has_blocks(nn.MultiHeadAttention(2, 3))
    assert has_blocks(nn.MultiHeadAttention(2, 3, flash_attention=True))
    assert has_blocks(nn.MultiHeadAttention(2, 3, dropout=0.5))
    assert not has_blocks(nn.MultiHeadAttention(2, 3, flash_attention=False))
    assert not has_blocks(nn.MultiHeadAttention(2, 3), return_attention_scores=True)


def test_weights_have_keras_shapes_and_order():
    query, value = nn.Input((5, 6)), nn.Input((7, 4))
    layer = nn.MultiHeadAttention(2, 3, 5)
    layer(query, value)
    assert [spec.shape for spec in layer.weight_specs] == [
        *((6, 2, 3), (2, 3), (4, 2, 3), (2, 3), (4, 2, 5), (2, 5)),
        *((2, 5, 6), (6,)),
    ]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: nn.MultiHeadAttention(0, 2), ValueError, "num_heads"),
        (
            lambda x: nn.MultiHeadAttention(1, 2, attention_axes=(2,)),
            ValueError,
            "attention_axes",
        ),
        (
            lambda x: nn.MultiHeadAttention(1, 2, flash_attention=True)(
                x, x, return_attention_scores=True
            ),
            ValueError,
            "no scores to return",
        ),
        (lambda x: nn.MultiHeadAttention(1, 2)(x), TypeError, r"layer\(query, value\)"),
        (lambda x: nn.Attention(score_mode="sum"), ValueError, "got 'sum'"),
        (lambda x: nn.Attention()(x), ValueError, "a list"),
        (
            lambda x: nn.MultiHeadAttention(1, 2)(x, x, nn.Input((3, 4))),
            ValueError,
            "5 steps, but key has 3",
        ),
    ],
)
def test_what_cannot_be_honoured_raises(call, error, message):
    with pytest.raises(error, match=message):
        call(nn.Input((5, 4)))


def test_calls_of_one_layer_say_the_same():
    layer, x = nn.MultiHeadAttention(1, 2), nn.Input((5, 4))
    layer(x, x)
    layer(x, x)
    with pytest.raises(ValueError, match="already called with other arguments"):
        layer(x, x, use_causal_mask=True)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_mask_of_pairs_of_steps(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5)).astype("f4")
    pairs = rng.random((3, 4, 4)) < 0.5
    pairs[:, :, 0] = True
    inputs, mask = nn.Input((4, 5)), nn.Input((4, 4), dtype=dtype)
    layer = nn.MultiHeadAttention(1, 3, use_bias=False)
    y, scores = layer(inputs, inputs, attention_mask=mask, return_attention_scores=True)
    model = nn.Model([inputs, mask], [y, scores])
    q, k, v, out = (w.reshape(-1, w.shape[-1]) for w in randomized(model))
    wanted, weights = attend(x @ q @ (x @ k).swapaxes(1, 2) / 3**0.5, x @ v, pairs, 0)
    found = model.predict([x, pairs.astype(dtype)], verbose=0)
    np.testing.assert_allclose(found[0], wanted @ out, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1][:, 0], weights, rtol=1e-4, atol=1e-6)
