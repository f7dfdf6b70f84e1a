"""Several inputs and outputs, losses by name, and weights of samples."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
SIZE = 8


def model(names=("a", "b"), **options):
    """Return a model of two inputs and two outputs, and its data."""
    a, b = nn.Input((3,), name="left"), nn.Input((2,), name="right")
    h = nn.Dense(5, activation="tanh", name="hidden")(nn.Concatenate()([a, b]))
    first, second = nn.Dense(1, name=names[0])(h), nn.Dense(4, name=names[1])(h)
    made = nn.Model([a, b], [first, second])
    options.setdefault("loss", {"a": "mse", "b": cross_entropy()})
    made.compile(nn.SGD(0.1), **options)
    return made


def cross_entropy():
    return nn.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def data():
    rng = np.random.default_rng(2)
    x = [rng.standard_normal((20, n)).astype("f4") for n in (3, 2)]
    return x, [rng.standard_normal((20, 1)).astype("f4"), rng.integers(0, 4, 20)]


def forward(weights, x):
    kernel, bias, *heads = weights
    h = np.tanh(np.concatenate(x, 1) @ kernel + bias)
    return h @ heads[0] + heads[1], h @ heads[2] + heads[3]


def entropies(logits, labels):
    shifted = logits - logits.max(1, keepdims=True)
    totals = np.log(np.exp(shifted).sum(1))
    return totals - shifted[np.arange(len(labels)), labels]


def test_losses_are_those_of_numpy(data):
    x, y = data
    made = model(loss_weights={"a": 0.5, "b": 2.0}, metrics={"b": ["accuracy"]})
    first, second = forward(made.get_weights(), x)
    a, b = ((first - y[0]) ** 2).mean(), entropies(second, y[1]).mean()
    logs = made.evaluate(x, y, SIZE, 0, return_dict=True)
    assert list(logs) == ["loss", "a_loss", "b_loss", "b_accuracy"]
    right = (second.argmax(1) == y[1]).mean()
    expected = [0.5 * a + 2 * b, a, b, right]
    np.testing.assert_allclose(list(logs.values()), expected, 1e-5)
    assert made.evaluate(x, y, SIZE, 0) == list(logs.values())


@pytest.mark.parametrize(
    "give",
    [
        lambda x, y: (x, y),
        lambda x, y: (tuple(x), tuple(y)),
        lambda x, y: (
            {"right": x[1], "left": x[0]},
            {"b": y[1], "a": y[0][:, 0]},
        ),
    ],
)
def test_data_goes_by_place_or_by_name(give, data):
    expected, made = model(), model()
    made.set_weights(expected.get_weights())
    x, y = give(*data)
    first = expected.fit(*data, SIZE, 2, 0, seed=3, validation_split=0.2).history
    found = made.fit(x, y, SIZE, 2, 0, seed=3, validation_split=0.2).history
    assert found == first
    assert {"val_loss", "val_a_loss", "val_b_loss"} < set(found)
    ours, theirs = made.predict(x, SIZE, 0), expected.predict(data[0], SIZE, 0)
    assert all(map(np.array_equal, ours, theirs))
    step = made.train_on_batch(x, y)
    assert step == expected.train_on_batch(*data)


def test_a_dataset_of_groups(data):
    x, y = data
    expected, made = model(), model()
    made.set_weights(expected.get_weights())
    parts = [tuple(x), tuple(y)]
    dataset = mc.data.Dataset.from_tensor_slices(tuple(parts)).batch(SIZE)
    batches = [
        (tuple(a[i : i + SIZE] for a in x), tuple(a[i : i + SIZE] for a in y))
        for i in range(0, 20, SIZE)
    ]
    history = expected.fit(x, y, SIZE, verbose=0, shuffle=False).history
    assert made.fit(dataset, verbose=0).history == history
    made.evaluate(batches, verbose=0)
    whole = expected.evaluate(x, y, SIZE, verbose=0)
    np.testing.assert_allclose(made.evaluate(batches, verbose=0), whole, 1e-6)


def test_what_is_left_out_has_no_loss(data):
    x, y = data
    assert model(loss={"a": "mse"}).evaluate(x, [y[0], None], verbose=0) > 0
    made = model(loss={"a": "mse", "b": None})
    assert list(made.evaluate(x, [y[0], None], verbose=0, return_dict=True)) == ["loss"]
    made.evaluate(x, {"a": y[0]}, verbose=0)
    made.evaluate(x, {"a": y[0], "b": y[1]}, verbose=0)  # of which "b" is not read
    before = made.get_layer("b").get_weights()
    with pytest.warns(UserWarning, match="depends on the weights 'b/bias', 'b/kernel'"):
        made.fit(x, y[:1], verbose=0)
    for old, new in zip(before, made.get_layer("b").get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": {"a": "mse", "c": "mse"}}, "outputs are 'a', 'b'"),
        ({"loss": ["mse"]}, "has 1 entries for 2 outputs"),
        ({"loss_weights": [1.0]}, "1 entries for 2 losses"),
        ({"loss_weights": {"c": 1.0}}, "loss_weights names 'c'"),
        ({"metrics": ["mae"]}, "metrics has 1 entries for 2 outputs"),
    ],
)
def test_what_compile_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (0, slice(None), "x must be a list of as many"),
        ([0], slice(None), "x has 1 array$"),
        (slice(None), [0], "y has 1 array$"),
    ],
)
def test_what_fit_refuses(x, y, message, data):
    def part(arrays, key):
        if isinstance(key, list):
            return [arrays[i] for i in key]
        return arrays[key]

    with pytest.raises((TypeError, ValueError), match=message):
        model().fit(part(data[0], x), part(data[1], y), verbose=0)


def single(**options):
    made = nn.Sequential([nn.Input((3,)), nn.Dense(4)])
    made.compile(nn.SGD(0.1), cross_entropy(), **options)
    return made


class TestWeights:
    def test_each_sample_counts_as_often_as_it_weighs(self, data):
        x, y = data[0][0], data[1][1]
        weights = np.arange(20, dtype="f4") % 3
        made = single(metrics=["accuracy"], weighted_metrics=["accuracy"])
        logits = made.predict(x, verbose=0)
        logs = made.evaluate(x, y, 20, 0, sample_weight=weights, return_dict=True)
        assert list(logs) == ["loss", "accuracy", "weighted_accuracy"]
        right = logits.argmax(1) == y
        expected = [
            (weights * entropies(logits, y)).sum() / 20,
            right.mean(),
            (weights * right).sum() / weights.sum(),
        ]
        np.testing.assert_allclose(list(logs.values()), expected, 1e-5)

    def test_classes_weigh_as_samples_do(self, data):
        x, y = data[0][0], data[1][1]
        table = {0: 2.0, 2: 0.5}
        weights = np.array([table.get(label, 1.0) for label in y], "f4")
        one, other = single(), single()
        other.set_weights(one.get_weights())
        found = one.fit(x, y, SIZE, 2, 0, seed=1, class_weight=table).history
        expected = other.fit(x, y, SIZE, 2, 0, seed=1, sample_weight=weights).history
        assert found == expected
        batches = [(x[:SIZE], y[:SIZE], weights[:SIZE])]
        step = one.train_on_batch(x[:SIZE], y[:SIZE], class_weight=table)
        assert other.fit(batches, verbose=0).history["loss"] == [step]
        assert all(map(np.array_equal, one.get_weights(), other.get_weights()))

    def test_of_each_output(self, data):
        x, y = data
        made = model()
        ones, twos = np.ones(20), np.full(20, 2.0)
        plain = made.evaluate(x, y, verbose=0)
        both = made.evaluate(x, y, verbose=0, sample_weight=twos)
        np.testing.assert_allclose(both, 2 * np.array(plain), 1e-6)
        one = made.evaluate(x, y, verbose=0, sample_weight={"a": ones, "b": twos})
        np.testing.assert_allclose(one[1:], plain[1:] * np.array([1, 2]), 1e-6)
        held = (x, y, twos)
        found = made.fit(x, y, verbose=0, validation_data=held).history
        again = made.evaluate(x, y, verbose=0, sample_weight=twos)
        np.testing.assert_allclose(found["val_loss"], again[0], 1e-6)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sample_weight": np.ones(3)}, "has one number for each"),
            ({"sample_weight": [1.0] * 19}, "has one number for each"),
            ({"sample_weight": ["1.0"] * 20}, "sample_weight"),
            ({"class_weight": [1.0]}, "class_weight is a dict"),
        ],
    )
    def test_what_they_cannot_be(self, options, message, data):
        with pytest.raises((TypeError, ValueError), match=message):
            single().fit(data[0][0], data[1][1], verbose=0, **options)


def test_indices_are_an_input(rows):
    made = nn.Sequential([nn.Input((4,), dtype="int32"), nn.Embedding(9, 3)])
    made.add(nn.Flatten())
    made.add(nn.Dense(2))
    made.compile("sgd", "mse")
    x = np.arange(24).reshape(6, 4) % 9  # int64, converted batch by batch
    assert made.fit(x, np.ones((6, 2), "f4"), 4, verbose=0).history["loss"][0] > 0
    whole = x.astype("f4")
    np.testing.assert_array_equal(
        made.predict(whole, verbose=0), made.predict(x, verbose=0)
    )
    with pytest.raises(ValueError, match="but whole numbers are read"):
        made.predict(whole + 0.5, verbose=0)


@pytest.mark.parametrize("memory", ["share", "keep_all", "sqrt_checkpoint"])
def test_every_policy_gives_the_same_bits(memory, data):
    x, y = data
    weights = np.linspace(0, 2, 20)
    nn.set_random_seed(5)
    made = model(memory=memory)
    history = made.fit(x, y, SIZE, 2, 0, seed=1, sample_weight=weights).history
    report = made.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    nn.set_random_seed(5)
    other = model(training_workspace_mode="separate")
    expected = other.fit(x, y, SIZE, 2, 0, seed=1, sample_weight=weights).history
    assert history == expected
    assert all(map(np.array_equal, made.get_weights(), other.get_weights()))


class Named(nn.Model):
    """Reads and gives dicts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(1), nn.Dense(2)

    def call(self, d):
        h = d["u"] - d["v"]
        return {"a": self.first(h), "b": self.second(h)}


@pytest.mark.parametrize("way", ["arrays", "batches", "on batch"])
def test_a_subclass_of_dicts_is_built_by_data_in_any_order(way):
    rng = np.random.default_rng(3)
    u, v, b = (rng.standard_normal((8, 2)).astype("f4") for _ in range(3))
    x, y = {"u": u, "v": v}, {"b": b, "a": b[:, :1]}
    weights = []
    for built in (False, True):
        nn.set_random_seed(4)
        made = Named()
        if built:
            made.build(dict.fromkeys(x, (None, 2)))
        made.compile("sgd", {"a": "mse", "b": "mse"})
        if way == "arrays":
            held = {"v": v, "u": u}, y
            made.fit(x, y, seed=1, verbose=0, validation_data=held)
            found = made.evaluate(x, y, verbose=0)
            assert made.history.history["val_loss"] == [pytest.approx(found[0])]
        elif way == "batches":
            made.fit([(x, y)], verbose=0)
        else:
            made.train_on_batch(x, y)
        weights.append(made.get_weights())
    assert all(map(np.array_equal, *weights))


def test_a_subclass_of_dicts_predicts_before_it_is_built():
    u = np.ones((4, 2), np.float32)
    found = Named().predict({"v": u, "u": u}, verbose=0)
    assert (found["a"].shape, found["b"].shape) == ((4, 1), (4, 2))
    assert not found["a"].any()
