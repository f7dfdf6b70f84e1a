"""Inputs with axes of any length: each is planned on its own, weights are shared.

The oracle of a length is the model built with that length alone.
"""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
FEATURES = 4


def convolutions(x):
    h = nn.Conv1D(6, 3, padding="causal", activation="relu")(x)
    h = nn.MaxPooling1D(2)(nn.SeparableConv1D(5, 3, padding="same")(h))
    return nn.GlobalAveragePooling1D()(nn.UpSampling1D(3)(h))


def recurrent(x):
    h = nn.Bidirectional(nn.GRU(3, return_sequences=True))(nn.Masking()(x))
    h = nn.RNN(nn.GRUCell(3), return_sequences=True)(h)
    return nn.LSTM(4)(nn.TimeDistributed(nn.Dense(5))(h))


def attention(x):
    h = nn.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    h = nn.LayerNormalization()(nn.Add()([h, x]))
    return nn.GlobalMaxPooling1D()(nn.Attention()([h, x]))


def functions(x):
    h = ops.concatenate([x[:, ::-1], ops.flip(x, 1)], -1)
    h = ops.softmax(ops.reshape(h, (-1, h.shape[1] or -1, 2, FEATURES)), axis=1)
    scores = ops.einsum("btkf,bskf->btsk", h, h) / 3 + ops.mean(h, (2, 3), True)
    return ops.sum(scores, axis=(1, 2)) + x[:, -1, :2] - ops.max(x, axis=1)[:, 1:3]


def own_layer(x):
    class Positions(nn.Layer):
        def build(self, shape):
            self.table = self.add_weight((160, shape[-1]), "normal", name="table")

        def call(self, x):
            return x + self.table[: x.shape[1]]

    return nn.Flatten()(nn.AveragePooling1D(2)(nn.Dropout(0.5)(Positions()(x))[:, :4]))


MAKERS = [convolutions, recurrent, attention, functions, own_layer]


def model(make, steps, batch_size=None):
    nn.set_random_seed(3)
    x = nn.Input((steps, FEATURES), batch_size)
    result = nn.Model(x, nn.Dense(3)(make(x)), name="net")
    result.compile(nn.Adam(0.01), "mse", metrics=["mae"])
    return result


def data(steps, size=4, seed=0):
    rng = np.random.default_rng([seed, steps])
    x = rng.normal(size=(size, steps, FEATURES)).astype(np.float32)
    x[0, -2:] = 0
    return x, rng.normal(size=(size, 3)).astype(np.float32)


@pytest.mark.parametrize("make", MAKERS)
def test_each_length_has_the_bits_and_the_bytes_of_a_model_of_that_length(make):
    of_any = model(make, None)
    assert of_any.input_shape == (None, None, FEATURES)
    assert of_any.output_shape == (None, 3)
    for steps in (4, 7, 4):
        alone = model(make, steps)
        alone.set_weights(of_any.get_weights())
        x, y = data(steps)
        peak = alone.plan(4).peak_bytes
        assert of_any.plan(4, lengths=steps).peak_bytes == peak
        expected = alone.predict_on_batch(x)
        assert (of_any.predict_on_batch(x) == expected).all()
        assert of_any.test_on_batch(x, y) == alone.test_on_batch(x, y)
        before = of_any.get_weights()
        of_any.train_on_batch(x, y)
        assert of_any.memory_plan.peak_bytes == peak
        report = of_any.memory_report(verify=True)
        assert report.measured_peak_bytes == peak
        assert any(
            (a != b).any() for a, b in zip(before, of_any.get_weights(), strict=True)
        )


def masked(x):
    h = nn.LSTM(5, return_sequences=True)(nn.Masking()(x))
    return nn.GlobalAveragePooling1D()(h)


def test_lengths_share_weights_and_the_optimizer():
    """Steps of zeros that are masked change nothing, so all can have one length."""
    of_any, longest = model(masked, None), model(masked, 9)
    longest.set_weights(of_any.get_weights())
    batches = [data(n, seed=seed) for seed in range(3) for n in (3, 9, 6)]
    padded = [(np.pad(x, [(0, 0), (0, 9 - x.shape[1]), (0, 0)]), y) for x, y in batches]
    histories = [
        each.fit(rows, epochs=2, verbose=0, validation_data=rows).history
        for each, rows in ((of_any, batches), (longest, padded))
    ]
    assert of_any.optimizer.iterations == 2 * len(batches)
    for name, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][name], rtol=1e-4)
    for a, b in zip(of_any.get_weights(), longest.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        of_any.evaluate(batches, verbose=0),
        longest.evaluate(padded, verbose=0),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        of_any.predict(batches, verbose=0), longest.predict(padded, verbose=0), 1e-3
    )


class Counted:
    """A policy that counts the graphs that it plans."""

    name = "counted"

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, limit_bytes=None):
        self.graphs.append(graph.name)
        return mc.plan.auto()(graph, limit_bytes=limit_bytes)


def test_a_length_is_planned_once_and_few_are_kept():
    policy, of_any = Counted(), model(convolutions, None)
    of_any.compile("sgd", "mse", memory=policy)
    for _ in range(3):
        for steps in (4, 6, 8):
            of_any.train_on_batch(*data(steps))
    assert len(policy.graphs) == 3
    for steps in range(10, 17):
        of_any.train_on_batch(*data(steps, size=1))
    with pytest.warns(mc.errors.RetracingWarning, match=r"11 lengths, such as .* Pad"):
        of_any.train_on_batch(*data(17, size=1))
    for steps in range(18, 45):
        of_any.train_on_batch(*data(steps, size=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_any.train_on_batch(*data(50))
    kept = of_any._session.executor.plans
    assert len(kept) == 32
    assert "train, batch 4, length 50" in kept
    assert len(policy.graphs) == 3 + 35 + 1


def test_two_axes_of_any_length_of_images_and_of_two_inputs():
    def images(height, width):
        nn.set_random_seed(1)
        x = nn.Input((height, width, 3))
        a = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
        b = nn.UpSampling2D()(nn.MaxPooling2D()(nn.BatchNormalization()(a)))
        y = nn.Conv2D(1, 1, activation="sigmoid")(nn.Concatenate()([a, b]))
        made = nn.Model(x, y)
        made.compile("adam", "binary_crossentropy")
        return made

    of_any, rng = images(None, None), np.random.default_rng(0)
    assert of_any.output_shape == (None, None, None, 1)
    for size in ((8, 8), (4, 10)):
        alone = images(*size)
        alone.set_weights(of_any.get_weights())
        x = rng.random((2, *size, 3), np.float32)
        y = (rng.random((2, *size, 1)) > 0.5).astype(np.float32)
        assert (alone.predict(x, verbose=0) == of_any.predict(x, verbose=0)).all()
        peak = alone.plan(2).peak_bytes
        assert of_any.plan(2, lengths=size).peak_bytes == peak
        assert of_any.fit(x, y, verbose=0).history == alone.fit(x, y, verbose=0).history
    with pytest.raises(ValueError, match="agree in all axes but one"):
        of_any.predict(rng.random((2, 5, 4, 3)), verbose=0)

    x, memory = nn.Input((None,), dtype="int32"), nn.Input((None, 5))
    h = nn.Embedding(11, 5, mask_zero=True)(x)
    h = nn.MultiHeadAttention(1, 4)(h, memory)
    both = nn.Model([x, memory], nn.Dense(11, activation="softmax")(h))
    both.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    for steps, others in ((3, 6), (5, 2)):
        ids = rng.integers(1, 11, (4, steps))
        both.train_on_batch([ids, rng.random((4, others, 5))], ids)
        label = f"train, batch 4, lengths {steps}x{others}"
        assert label in both._session.executor.plans
    with pytest.raises(ValueError, match="index 12, which is out of range"):
        both.predict([np.full((1, 2), 12), rng.random((1, 2, 5))])


def test_a_limit_holds_for_each_length():
    mc.config.set_memory_limit("CPU:0", "256KiB")
    try:
        of_any = model(attention, None)
        short = of_any.largest_batch(lengths=3)
        assert 0 < of_any.largest_batch(lengths=12) < short
        assert of_any.largest_batch("256KiB", lengths=3) == short
        with pytest.warns(mc.errors.FallbackWarning, match="length 40 needs"):
            of_any.train_on_batch(*data(40, size=64))
        assert mc.config.get_memory_info("CPU:0")["peak"] <= 256 << 10
        assert "length 40" in str(of_any.estimate(4, lengths=40))
        with pytest.raises(mc.errors.InfeasiblePlanError, match="net does not fit"):
            of_any.plan(64, lengths=4000)
    finally:
        mc.config.set_memory_limit("CPU:0", None)


def test_what_needs_a_length_says_so(capsys):
    of_any = model(attention, None)
    for use in (of_any.plan, of_any.largest_batch, of_any.estimate, of_any.graph):
        with pytest.raises(ValueError, match="pass a length, lengths=50"):
            use()
    with pytest.raises(ValueError, match="lengths is for axes of None"):
        model(attention, 3).plan(lengths=3)
    with pytest.raises(
        ValueError, match=r"with 1 axis of None, and lengths has 2: pass one length$"
    ):
        of_any.plan(lengths=(3, 4))
    of_any.summary()
    shown = capsys.readouterr().out
    assert "(None, None, 4)" in shown
    assert "plan(batch_size, lengths=...) says what one takes" in shown
    with pytest.raises(ValueError, match=r"x has shape .*reads \(None, None, 4\)"):
        of_any.predict(np.zeros((2, 5, 3)))


def test_what_depends_on_the_length_is_refused():
    x = nn.Input((None, FEATURES))
    with pytest.raises(ValueError, match=r"weights of layer 'head' .* depend on the"):
        nn.Dense(3, name="head")(nn.Flatten()(x))
    with pytest.raises(ValueError, match=r"weights of layer .* depend on the length"):
        nn.Dense(3)(nn.Input((None,)))
    with pytest.raises(ValueError, match="as many tensors as an axis"):
        ops.unstack(x, axis=1)
    with pytest.raises(ValueError, match="takes one length, and not any"):
        nn.Reshape((96 * 2, 2))(x)
    with pytest.raises(
        ValueError, match=r"out of range.*96 stands for an axis of None"
    ):
        ops.mean(x, axis=5)
    with pytest.raises(IndexError, match=r"index 2000 .*96 stands for an axis of None"):
        x[:, 2000]
    with pytest.raises(ValueError, match=r"\(None, 96, 4\).*96 stands for an axis"):
        nn.Add()([x, nn.Input((7, FEATURES))])
    chain = nn.Sequential([nn.Input((None, 2)), nn.Flatten()])
    with pytest.raises(ValueError, match="depend on the length"):
        chain.add(nn.Dense(1))

    class OfSteps(nn.Layer):
        def build(self, shape):
            self.scale = self.add_weight((shape[1],), name="scale")

        def call(self, x):
            return x

    with pytest.raises(ValueError, match="depend on the length"):
        OfSteps()(x)
    pieces = [np.zeros((2, n, FEATURES), np.float32) for n in (3, 5)]
    with pytest.raises(ValueError, match=r"outputs of shapes \(3, 1\) and \(5, 1\)"):
        nn.Model(x, nn.Conv1D(1, 1)(x)).predict(iter(pieces), verbose=0)


@pytest.mark.parametrize("ending", ["memcfg", "keras"])
@pytest.mark.filterwarnings("ignore:Keras cannot read")
def test_a_saved_model_has_any_length(tmp_path, ending):
    of_any = model(functions if ending == "memcfg" else recurrent, None)
    of_any.train_on_batch(*data(5))
    of_any.save(tmp_path / f"net.{ending}")
    loaded = nn.models.load_model(tmp_path / f"net.{ending}")
    copied = copy.deepcopy(of_any)
    assert loaded.input_shape == copied.input_shape == (None, None, FEATURES)
    for steps in (4, 8):
        x, y = data(steps)
        for other in (loaded, copied):
            assert (other.predict(x, verbose=0) == of_any.predict(x, verbose=0)).all()
        logs = [each.train_on_batch(x, y) for each in (of_any, loaded, copied)]
        assert logs[0] == logs[1] == logs[2]


def test_models_that_are_built_for_any_length():
    class Reader(nn.Model):
        def __init__(self):
            super().__init__()
            self.read, self.drop, self.head = nn.GRU(4), nn.Dropout(0.5), nn.Dense(2)

        def call(self, x, training=False):
            h = self.read(x)
            return self.head(self.drop(h) if training else h)

    reader = Reader()
    reader.build((None, None, FEATURES))
    chain = nn.Sequential([nn.Conv1D(3, 2), nn.GlobalMaxPooling1D(), nn.Dense(2)])
    chain.build((None, None, FEATURES))
    inner = nn.Sequential([nn.Input((None, FEATURES)), nn.Conv1D(2, 3)], name="inner")
    x = nn.Input((None, FEATURES))
    nested = nn.Model(x, nn.GlobalMaxPooling1D()(inner(x)))
    assert inner(nn.Input((7, FEATURES))).shape == (None, 5, 2)
    for each in (reader, chain, nested):
        each.compile("adam", "mse")
        for steps in (4, 6):
            x, y = data(steps)
            first = each.evaluate(x, y[:, :2], verbose=0)
            each.fit(x, y[:, :2], epochs=8, verbose=0)
            assert each.evaluate(x, y[:, :2], verbose=0) < first
    assert nn.Dense(2).compute_output_shape((None, None, 3)) == (None, None, 2)


def test_buckets_bound_the_number_of_lengths():
    rng = np.random.default_rng(4)
    rows = [rng.integers(1, 9, rng.integers(1, 16)) for _ in range(60)]
    spec = (mc.data.TensorSpec((None,), "int64"), mc.data.TensorSpec((), "int64"))
    pairs = mc.data.Dataset.from_generator(
        lambda: ((row, int(row[0] > 4)) for row in rows), output_signature=spec
    )
    buckets = pairs.bucket_by_sequence_length(
        lambda row, label: len(row),
        [5, 9, 17],
        [8, 8, 4, 1],
        pad_to_bucket_boundary=True,
    )
    x = nn.Input((None,), dtype="int32")
    h = nn.GlobalAveragePooling1D()(nn.Embedding(9, 8, mask_zero=True)(x))
    net = nn.Model(x, nn.Dense(1, activation="sigmoid")(h))
    net.compile(nn.Adam(0.05), "binary_crossentropy")
    history = net.fit(buckets, epochs=6, verbose=0).history["loss"]
    assert history[-1] < history[0]
    lengths = {key.rpartition(" ")[2] for key in net._session.executor.plans}
    assert lengths == {"4", "8", "16"}


def test_the_length_of_an_axis_of_none_is_no_number():
    x = nn.Input((None, FEATURES))
    with pytest.raises(TypeError, match=r"arange: start .* got None"):
        ops.arange(ops.shape(x)[1])
    with pytest.raises(ValueError, match=r"does not fit \(None, None, 4\)"):
        ops.broadcast_to(x[:, :1], ops.shape(x))


def test_programs_that_are_no_longer_loaded_are_forgotten():
    chain = nn.Sequential([nn.Input((None, 1)), nn.GlobalAveragePooling1D()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.errors.RetracingWarning)
        for steps in range(1, 300):
            chain.predict_on_batch(np.ones((1, steps, 1), np.float32))
    assert len(chain._session._used) < 260
    assert len(chain._session.executor.plans) == 32


def few_steps(x):
    """A table of 20 steps, and values from before and behind it."""
    h = nn.Conv1D(FEATURES, 3, padding="same")(x)
    table = nn.PositionEmbedding(20)(h)
    return nn.GlobalAveragePooling1D()(nn.Add()([h, table, x]) + nn.LSTM(1)(x)[:, None])


def parts_of_seven(x):
    h = nn.Reshape((-1, 7, FEATURES))(nn.Dense(FEATURES)(x))
    return nn.GlobalMaxPooling1D()(ops.mean(h, 2) + ops.mean(x, 1, True))


def windows(x):
    h = nn.AdaptiveAveragePooling1D(4)(x[:, :9] * ops.max(x, 1, True))
    return nn.Flatten()(nn.MaxPooling1D(2)(h))


@pytest.mark.parametrize(
    ("make", "steps"),
    [(few_steps, (4, 19)), (parts_of_seven, (7, 21)), (windows, (9, 12))],
)
def test_networks_that_take_some_lengths_only(make, steps, tmp_path):
    """The usual lengths that stand for any do not fit them, and others do."""
    of_any = model(make, None)
    assert of_any.input_shape == (None, None, FEATURES)
    of_any.save(tmp_path / "m.memcfg")
    loaded = nn.models.load_model(tmp_path / "m.memcfg")
    others = [of_any, loaded, copy.deepcopy(of_any), nn.models.clone_model(of_any)]
    x = nn.Input((None, FEATURES))
    others.append(nn.Model(x, of_any(x)))
    for length in steps:
        alone, (batch, _) = model(make, length), data(length)
        alone.set_weights(of_any.get_weights())
        expected = alone.predict(batch, verbose=0)
        for each in others:
            each.set_weights(of_any.get_weights())
            assert (each.predict(batch, verbose=0) == expected).all()
        assert of_any.train_on_batch(*data(length)) is not None


def test_a_length_that_a_network_does_not_take_is_an_error():
    of_any = model(few_steps, None)
    with pytest.raises(ValueError, match="vectors for 20 steps, but its input has 21"):
        of_any.predict(data(21)[0], verbose=0)
    x = nn.Input((None, FEATURES))
    with pytest.raises(ValueError, match=r"steps.*96 stands for an axis of None"):
        nn.PositionEmbedding(2)(x)


def test_values_of_both_kinds_make_one_model():
    """An output from before the table, and one behind it."""
    x = nn.Input((None, FEATURES))
    h = nn.Dense(3)(x)
    y = nn.Add()([h, nn.PositionEmbedding(10)(h)])
    both = nn.Model(x, [h, y, nn.GlobalMaxPooling1D()(h)])
    batch = data(6)[0]
    first, second, third = both.predict(batch, verbose=0)
    np.testing.assert_array_equal(first.max(1), third)
    assert second.shape == first.shape == (4, 6, 3)
    inner = nn.Model(h, y)
    np.testing.assert_array_equal(inner.predict(first, verbose=0), second)


def built_by_data():
    return nn.Sequential(
        [
            nn.LSTM(4, return_sequences=True),
            nn.Dense(3),
            nn.GlobalAveragePooling1D(),
        ]
    )


def test_a_model_that_data_built_takes_other_lengths_and_goes_on():
    """As one whose Input says so from the start, to the bit."""
    nn.set_random_seed(4)
    found = built_by_data()
    nn.set_random_seed(4)
    stated = nn.Sequential([nn.Input((None, FEATURES)), *built_by_data().layers])
    for each in (found, stated):
        each.compile(nn.Adam(0.01), "mse")
    losses = []
    for each in (found, stated):
        if each is found:
            each.predict(data(5)[0], verbose=0)
            assert each.input_shape == (None, 5, FEATURES)
            weights = each.get_weights()
        else:
            each.set_weights(weights)
        losses.append(
            [each.fit(*data(5), verbose=0, shuffle=False).history["loss"][0]]
            + [
                each.fit(*data(n), verbose=0, shuffle=False).history["loss"][0]
                for n in (9, 3)
            ]
            + [each.train_on_batch(*data(6)), each.evaluate(*data(4), verbose=0)]
        )
        assert each.input_shape == (None, None, FEATURES)
        assert each.optimizer.iterations == 4
    assert losses[0] == losses[1]
    for a, b in zip(found.get_weights(), stated.get_weights(), strict=True):
        assert (a == b).all()


def test_a_model_that_cannot_take_other_lengths_is_as_it_was():
    chain = nn.Sequential([nn.Flatten(), nn.Dense(2)])
    expected = chain.predict(np.ones((2, 4, 3), np.float32), verbose=0)
    for shape in ((2, 5, 3), (2, 4)):
        with pytest.raises(ValueError, match="but the model reads"):
            chain.predict(np.ones(shape, np.float32), verbose=0)
    assert chain.input_shape == (None, 4, 3)
    again = chain.predict(np.ones((2, 4, 3), np.float32), verbose=0)
    assert (again == expected).all()
    built = built_by_data()
    built.build((None, 5, FEATURES))  # was told, and not guessed
    with pytest.raises(ValueError, match=r"reads \(None, 5, 4\)"):
        built.predict(data(6)[0], verbose=0)


def test_models_within_a_call_take_any_length():
    """A chain without an Input, as in Keras's example of a translating transformer."""

    class Encoder(nn.Layer):
        def __init__(self):
            super().__init__()
            self.project = nn.Sequential([nn.Dense(6, activation="relu"), nn.Dense(4)])

        def call(self, x):
            return x + self.project(x)

    start = nn.Input((None, 4))
    layer = Encoder()
    model = nn.Model(start, layer(start))
    first, second = (kernel for kernel in model.get_weights() if kernel.ndim == 2)
    for steps in (3, 7):
        x = np.random.default_rng(steps).normal(size=(2, steps, 4)).astype("f")
        expected = x + np.maximum(x @ first, 0) @ second
        found = model.predict(x, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert layer.project.input_shape == (None, None, 4)
