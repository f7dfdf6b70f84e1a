"""Masks go from layer to layer: which steps count where, against NumPy."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
STEPS, FEATURES = 4, 4  # equal: no rule may go by lengths


class Shown(nn.Layer):
    """The mask itself, and ones where there is none."""

    def call(self, x, mask=None):
        return x[..., :1] * 0.0 + 1.0 if mask is None else mask[:, :, None]


class Passing(nn.Layer):
    supports_masking = True

    def call(self, x):
        return x[:, ::-1] @ self.kernel

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], 4))

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[:, ::-1]


class Silent(nn.Layer):
    """Says nothing of masks, but has layers that do."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4)

    def call(self, x):
        return self.dense(x)


class Dropped(Silent):
    def compute_mask(self, inputs, mask=None):
        return None


class Both(nn.Layer):
    """Two results of two inputs, and their masks the other way round."""

    def call(self, inputs):
        first, second = inputs
        return second * 1.0, first * 1.0

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else [mask[1], mask[0]]


def sequences(seed):
    """Sequences and their mask."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, STEPS, FEATURES)).astype("f4")
    mask = rng.random(x.shape[:2]) < 0.6
    x[~mask] = 0
    return x, mask


def nested(h):
    x = nn.Input((STEPS, FEATURES))
    return nn.Model(x, nn.Dense(3)(nn.LSTM(2, return_sequences=True)(x)))(h)


def masking_within(h):
    x = nn.Input((STEPS, FEATURES))
    return nn.Model(x, nn.Dense(3)(nn.Masking()(x)))(h[:, ::-1])  # masks anew


RULES = {
    # of one tensor: what becomes of it and its mask
    "dense": (lambda h: nn.Dense(2)(h), lambda a: a),
    "softmax": (lambda h: nn.Softmax()(h), lambda a: a),
    "prelu": (lambda h: nn.PReLU()(nn.ReLU()(h)), lambda a: a),
    "dropout": (lambda h: nn.SpatialDropout1D(0.5)(nn.Dropout(0.5)(h)), lambda a: a),
    "norms": (
        lambda h: nn.LayerNormalization()(nn.BatchNormalization()(h)),
        lambda a: a,
    ),
    "numbers": (lambda h: 1 / (2 - abs(-h) ** 2 * 3), np.ones_like),
    "ops": (lambda h: nn.ops.exp(h), np.ones_like),
    "activation": (lambda h: nn.activations.relu(h), np.ones_like),
    "activation layer": (lambda h: nn.Activation(nn.activations.relu)(h), lambda a: a),
    "rescaled": (lambda h: nn.Rescaling(2.0)(h), lambda a: a),
    "distributed": (lambda h: nn.TimeDistributed(nn.Dense(2))(h), lambda a: a),
    "lstm": (lambda h: nn.LSTM(2, return_sequences=True)(h), lambda a: a),
    "backwards": (
        lambda h: nn.GRU(2, return_sequences=True, go_backwards=True)(h),
        lambda a: a,
    ),
    "both ways": (
        lambda h: nn.Bidirectional(nn.GRU(2, return_sequences=True))(h),
        lambda a: a,
    ),
    "apart": (
        lambda h: nn.Bidirectional(nn.GRU(2, return_sequences=True), None)(h)[1],
        lambda a: a,
    ),
    "state": (
        lambda h: nn.LSTM(4, return_sequences=True, return_state=True)(h)[0],
        lambda a: a,
    ),
    "part": (lambda h: h[:, 3:0:-2], lambda a: np.ones_like(a[:, 3:0:-2])),
    "feature": (lambda h: h[:, :, 1:2], np.ones_like),
    "nested": (nested, lambda a: a),
    "masking within": (masking_within, lambda a: a[:, ::-1]),
    "passing": (lambda h: Passing()(h), lambda a: a[:, ::-1]),
    "silent": (lambda h: Silent()(h), lambda a: a),
    "dropped": (lambda h: Dropped()(h), np.ones_like),
    "reshape": (lambda h: nn.Reshape((STEPS, FEATURES))(h), np.ones_like),
    "permute": (lambda h: nn.Permute((2, 1))(h), np.ones_like),
    "conv": (lambda h: nn.Conv1D(2, 3, padding="same")(h), np.ones_like),
    "pool": (lambda h: nn.MaxPooling1D(2, 1, padding="same")(h), np.ones_like),
    "padded": (lambda h: nn.Cropping1D(1)(nn.ZeroPadding1D(1)(h)), np.ones_like),
    "upsampled": (lambda h: nn.UpSampling1D(1)(h), np.ones_like),
    "repeated": (
        lambda h: nn.RepeatVector(STEPS)(nn.GlobalMaxPooling1D()(h)),
        np.ones_like,
    ),
}
MERGES = {
    **{
        kind: (lambda h, g, kind=kind: getattr(nn, kind)()([h, g]), np.logical_or)
        for kind in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
    },
    "+": (lambda h, g: h + g, lambda a, b: np.ones_like(a)),
    "/": (lambda h, g: h / (g + 9.0), lambda a, b: np.ones_like(a)),
    "concatenated": (lambda h, g: nn.Concatenate()([h, g]), np.logical_or),
    "in steps": (
        lambda h, g: nn.Concatenate(1)([h, g]),
        lambda a, b: np.concatenate([a, b], 1),
    ),
    "dot": (lambda h, g: nn.Dot(2)([h, g]), lambda a, b: np.ones_like(a)),
    "attention": (lambda h, g: nn.Attention()([h, g]), lambda a, b: a),
    "additive": (lambda h, g: nn.AdditiveAttention()([h, g]), lambda a, b: a),
    "heads": (lambda h, g: nn.MultiHeadAttention(2, 2)(h, g), lambda a, b: a),
    "outputs": (lambda h, g: Both()([h, g])[0], lambda a, b: b),
}


@pytest.mark.parametrize("rule", RULES)
def test_masks_of_one_tensor(rule):
    compute, wanted = RULES[rule]
    x, mask = sequences(0)
    inputs = nn.Input(x.shape[1:])
    model = nn.Model(inputs, Shown()(compute(nn.Masking()(inputs))))
    found = model.predict(x, verbose=0)[..., 0]
    np.testing.assert_array_equal(found, wanted(mask))


@pytest.mark.parametrize("rule", MERGES)
@pytest.mark.parametrize("both", [False, True])
def test_masks_of_two_tensors(rule, both):
    """Without a mask all steps count."""
    compute, wanted = MERGES[rule]
    (x, a), (y, b) = sequences(0), sequences(1)
    inputs = [nn.Input(x.shape[1:]), nn.Input(x.shape[1:])]
    h, g = nn.Masking()(inputs[0]), inputs[1]
    if both:
        g = nn.Masking()(g)
    else:
        b = np.ones_like(b)
    model = nn.Model(inputs, Shown()(compute(h, g)))
    found = model.predict([x, y], verbose=0)[..., 0]
    np.testing.assert_array_equal(found, wanted(a, b))


@pytest.mark.parametrize("kind", ["Multiply", "Maximum", "Minimum"])
@pytest.mark.parametrize("masks", [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 1, 0)])
def test_steps_that_do_not_count_yield_to_those_that_do(kind, masks):
    reduce, start = {
        "Multiply": (np.multiply, 1.0),
        "Maximum": (np.maximum, -np.inf),
        "Minimum": (np.minimum, np.inf),
    }[kind]
    arrays, tensors, values, counted = [], [], [], []
    for seed, masked in enumerate(masks):
        x, mask = sequences(seed)
        if not masked:
            mask = np.ones_like(mask)
        arrays.append(x)
        inputs = nn.Input(x.shape[1:])
        tensors.append((inputs, nn.Masking()(inputs) if masked else inputs))
        values.append(np.where(mask[..., None], x, start))
        counted.append(mask)
    y = getattr(nn, kind)()([h for _, h in tensors])
    model = nn.Model([x for x, _ in tensors], y)
    wanted = np.where(
        np.any(counted, 0)[..., None], reduce.reduce(values), 0.0
    )  # nothing counts: zeros, of which all are
    np.testing.assert_allclose(model.predict(arrays, verbose=0), wanted, 1e-6)


@pytest.mark.parametrize("keepdims", [False, True])
def test_global_means_are_of_the_steps_that_count(keepdims):
    x, mask = sequences(0)
    mask[0] = False
    x[0] = 0
    inputs = nn.Input(x.shape[1:])
    h = nn.Masking()(inputs)
    model = nn.Model(inputs, nn.GlobalAveragePooling1D(keepdims=keepdims)(h))
    counts = np.maximum(mask.sum(1), 1)[:, None]
    wanted = x.sum(1) / counts
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, 1e-5, 1e-6)


def test_moments_are_of_the_steps_that_count():
    x, mask = sequences(0)
    inputs = nn.Input(x.shape[1:])
    h = nn.Rescaling(1.0, 1.0)(nn.Masking()(inputs))  # what is masked is not 0
    model = nn.Model(inputs, nn.BatchNormalization(momentum=0.0)(h))
    model.compile(nn.SGD(0.1), "mse")
    y = np.random.default_rng(2).normal(size=x.shape).astype("f4")
    loss = model.train_on_batch(x, y)
    gamma, beta, mean, variance = model.get_weights()
    rows = x[mask].astype(float) + 1
    np.testing.assert_allclose(mean, rows.mean(0), 1e-5)
    np.testing.assert_allclose(variance, rows.var(0), 1e-4)
    normal = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
    error = normal - y[mask]
    assert float(loss) == pytest.approx((error**2).mean(), rel=1e-5)
    slope = 2 * error / error.size
    np.testing.assert_allclose(gamma, 1 - 0.1 * (slope * normal).sum(0), 1e-5)
    np.testing.assert_allclose(beta, -0.1 * slope.sum(0), 1e-4, 1e-6)


def test_a_softmax_along_steps_leaves_out_what_is_masked():
    x, mask = sequences(0)
    mask[0], x[0] = False, 0
    inputs = nn.Input(x.shape[1:])
    model = nn.Model(inputs, nn.Softmax(axis=1)(nn.Masking()(inputs)))
    powers = np.exp(x) * mask[..., None]
    total = powers.sum(1, keepdims=True)
    wanted = powers / np.where(total == 0, 1, total)
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 1e-5, 1e-7)


@pytest.mark.parametrize("loss", ["mse", nn.losses.MeanSquaredError(reduction="sum")])
def test_a_batch_without_a_step_that_counts(loss):
    """Its loss is 0, and nothing is learnt of it."""
    model = nn.Sequential(
        [nn.Input((4, 2)), nn.Masking(), nn.GRU(3, return_sequences=True)]
    )
    model.compile("sgd", loss, metrics=["mae"])
    before = model.get_weights()
    x, y = np.zeros((6, 4, 2), "f4"), np.ones((6, 4, 3), "f4")
    found = model.fit(x, y, batch_size=4, verbose=0).history
    assert found == {"loss": [0.0], "mae": [0.0]}
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mask_ends_where_steps_do():
    """Equal lengths of steps, features and classes are nobody's mask."""
    ids = np.array([[1, 2, 3, 0, 0, 0]] * 4)
    inputs = nn.Input((6,), dtype="int32")
    h = nn.Embedding(9, 6, mask_zero=True)(inputs)
    flat = nn.Model(inputs, nn.Reshape((6,))(nn.Dense(1)(h)))
    flat.compile("sgd", "mse")
    y = np.ones((4, 6), "f4")
    error = (flat.predict(ids, verbose=0) - y) ** 2
    assert flat.evaluate(ids, y, verbose=0) == pytest.approx(error.mean(), rel=1e-5)
    flat.close()
    classes = nn.Dense(6, "softmax")(nn.GlobalMaxPooling1D()(h))
    model = nn.Model(inputs, classes)
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert model.fit(ids, np.arange(4), verbose=0).history["loss"][0] > 0


def test_a_mask_of_other_steps_is_refused():
    class Shorter(nn.Layer):
        supports_masking = True

        def call(self, x):
            return x[:, 1:] + 0.0

        def compute_mask(self, inputs, mask=None):
            return mask

    x = nn.Input((5, 2))
    model = nn.Model(x, Shorter()(nn.Masking()(x)))
    with pytest.raises(ValueError, match=r"None, 5.*: override compute_mask"):
        model.predict(np.ones((2, 5, 2), "f4"), verbose=0)


def families():
    ids, floats = nn.Input((6,), dtype="int32"), nn.Input((6, 4), batch_size=4)
    h = nn.Embedding(5, 4, mask_zero=True)(ids)
    lstm = nn.LSTM(3, return_sequences=True)(h)
    both = nn.Bidirectional(nn.GRU(3, return_sequences=True))(h)
    steps = nn.TimeDistributed(nn.Dense(3, "tanh"))(nn.BatchNormalization()(h))
    state = nn.LSTM(3, return_sequences=True, stateful=True)(nn.Masking()(floats))
    merged = nn.Multiply()([nn.Dense(4)(lstm), nn.MultiHeadAttention(2, 2)(h, h)])
    return {
        "lstm": (ids, nn.Dense(2)(lstm)),
        "bidirectional": (ids, nn.Dense(2)(both)),
        "distributed": (ids, nn.Dense(2)(nn.GlobalAveragePooling1D()(steps))),
        "stateful": (floats, nn.Dense(2)(state)),
        "merged": (ids, nn.Dense(2)(merged[:, ::-1])),
    }


@pytest.mark.parametrize(
    "family", ["lstm", "bidirectional", "distributed", "stateful", "merged"]
)
def test_every_policy_trains_to_the_same_bits(family):
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 5, (12, 6))
    ids[8:] = 0  # a whole batch of padding
    floats = np.where(ids[..., None] != 0, rng.normal(size=(12, 6, 4)), 0)
    weights = set()
    for memory in ("keep_all", "share", "sqrt_checkpoint", "auto"):
        nn.set_random_seed(3)
        inputs, outputs = families()[family]
        model = nn.Model(inputs, outputs)
        model.compile("adam", "mse", memory=memory)
        x = ids if inputs.dtype == "int32" else floats
        shape = (12, *outputs.shape[1:])
        y = np.random.default_rng(6).normal(size=shape).astype("f4")
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        weights.add(b"".join(w.tobytes() for w in model.get_weights()))
        assert all(np.isfinite(w).all() for w in model.get_weights())
        report = model.memory_report()
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        model.close()
    assert len(weights) == 1


def test_a_step_that_is_added_to_all_counts_in_the_mask_of_each():
    rng = np.random.default_rng(0)
    x, one = (rng.normal(size=(3, steps, 2)).astype("f4") for steps in (4, 1))
    x[0, 2:] = x[1] = one[1] = one[2] = 0
    found = []
    for other in (one, np.repeat(one, 4, axis=1)):
        nn.set_random_seed(0)
        inputs = [nn.Input((4, 2)), nn.Input(other.shape[1:])]
        h = nn.Add()([nn.Masking()(each) for each in inputs])
        model = nn.Model(inputs, nn.LSTM(3)(h))
        found.append(model.predict([x, other], verbose=0))
        model.close()
    np.testing.assert_array_equal(*found)
    assert not found[0][1].any()  # no step of it counts


@pytest.mark.parametrize("copy", ["saved", "copied"])
def test_operators_drop_masks_in_copies_too(copy, tmp_path):
    ids = nn.Input((6,), dtype="int32")
    h = nn.Embedding(5, 4, mask_zero=True)(ids)
    dropped, kept = nn.Dense(2)(h + h), nn.Dense(2)(nn.Add()([h, h]))
    model = nn.Model(ids, [dropped, kept])
    model.compile("sgd", "mse")
    if copy == "saved":
        model.save(tmp_path / "model.memcfg")
        again = nn.models.load_model(tmp_path / "model.memcfg")
    else:
        again = deepcopy(model)
    x, y = np.array([[1, 2, 0, 0, 3, 0]]), [np.ones((1, 6, 2), "f4")] * 2
    wanted = model.evaluate(x, y, verbose=0)
    assert wanted[1] != wanted[2]
    assert again.evaluate(x, y, verbose=0) == wanted
    model.close()
    again.close()


def test_a_call_is_given_a_mask():
    """It takes the place of that of the sequence, at once as in a model."""
    random = np.random.default_rng(0)
    x = np.float32(random.normal(size=(3, 5, 4)))
    lengths = [2, 5, 3]
    mask = np.arange(5) < np.array(lengths)[:, None]
    layer = nn.LSTM(3)
    found = layer(x, mask=mask)
    for row, length, one in zip(x, lengths, found, strict=True):
        np.testing.assert_allclose(layer(row[None, :length])[0], one, atol=1e-6)
    a, b = nn.Input((5, 4)), nn.Input((5,), dtype="int32")
    model = nn.Model([a, b], layer(a, mask=b))
    given = [x, np.int32(mask)]
    np.testing.assert_allclose(model.predict(given, verbose=0), found, atol=1e-6)
    heads = nn.MultiHeadAttention(2, 3)
    whole = heads(x, x, value_mask=mask)
    for row, length, one in zip(x, lengths, whole, strict=True):
        alone = heads(row[None], row[None, :length])
        np.testing.assert_allclose(alone[0], one, atol=1e-5)
    with pytest.raises(ValueError, match=r"a mask has shape \(None, 5\)"):
        layer(a, mask=nn.Input((4,)))
    with pytest.raises(TypeError, match="a mask is a symbolic tensor"):
        layer(a, mask=3)
    with pytest.raises(TypeError, match="mask must be a list"):
        nn.Attention()([a, a], mask=b)
    with pytest.raises(TypeError, match="masks come with"):
        nn.Dense(3)(a, mask=b)


def test_a_softmax_is_given_a_mask():
    x = np.float32(np.random.default_rng(0).normal(size=(2, 3, 4)))
    mask = x > 0
    mask[0, 0] = False
    weights = np.where(mask, np.exp(x), 0)
    for axis in (-1, (1, 2)):
        total = weights.sum(axis, keepdims=True)
        expected = np.divide(weights, total, out=np.zeros_like(x), where=total > 0)
        found = nn.layers.Softmax(axis=axis)(x, mask=mask)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(TypeError, match="of the rank of the input, 3"):
        nn.layers.Softmax()(nn.Input((3, 4)), mask=nn.Input((3,)))


def test_masks_and_modes_follow_the_inputs_of_a_call():
    """By their places, as in Keras."""
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    mask = np.array([[1, 1, 0], [0, 1, 0]])
    pool = nn.layers.GlobalAveragePooling1D()
    wanted = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    np.testing.assert_allclose(pool(x, mask), wanted, rtol=1e-6)
    assert (nn.Dropout(0.9, seed=1)(x, True) == 0).mean() > 0.5
    normal = nn.BatchNormalization()(x, True)
    np.testing.assert_allclose(normal.mean((0, 1)), np.zeros(4), atol=1e-5)
    with pytest.raises(TypeError, match="accepts only tensors, got True"):
        nn.Dense(2)(x, True)


def test_masks_of_several_inputs_are_as_many():
    x = np.zeros((2, 3, 4), np.float32)
    mask = np.ones((2, 3), np.float32)
    attention = nn.layers.Attention()
    assert attention.compute_mask([x, x], [mask, None]) is mask
    assert attention.compute_mask([x, x], [None, mask]) is None
    for masks, words in (
        (mask, "a mask must be a list"),
        ([mask], "1 masks for 2 inputs"),
    ):
        with pytest.raises(ValueError, match=words):
            nn.layers.Add().compute_mask([x, x], masks)
    with pytest.raises(ValueError, match="inputs must be a list"):
        nn.layers.Add().compute_mask(x, [mask, mask])
