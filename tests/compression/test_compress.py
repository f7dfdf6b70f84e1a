"""The whole of Deep Compression on small digits, within a limit."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import memcfg as mc
from memcfg.compression import (
    compress,
    load,
    quantize,
    quantize_by_rate,
    sensitivity,
    share_weights,
)

nn = mc.nn


@pytest.fixture(scope="module")
def digits():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    x, y = load_digits(return_X_y=True)
    x = np.float32(x / 16)
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def network(metrics=("accuracy",)):
    nn.set_random_seed(0)
    layers = [
        nn.Dense(64, activation="relu", name="a"),
        nn.Dense(10, activation="softmax", name="b"),
    ]
    model = nn.Sequential([nn.Input((64,)), *layers])
    loss = "sparse_categorical_crossentropy"
    model.compile(nn.Adam(0.005), loss, metrics=list(metrics))
    return model


@pytest.fixture(scope="module")
def trained(digits):
    model = network()
    model.fit(*digits[0], epochs=8, verbose=0)
    model.close()
    return model


def accuracy(model, data):
    return model.evaluate(*data, verbose=0, return_dict=True)["accuracy"]


def test_it_keeps_the_accuracy_within_a_limit(digits, trained, tmp_path):
    train, test = digits
    before = copy.deepcopy(trained).get_weights()
    limit = trained.plan(32).peak_bytes + 4096
    mc.config.set_memory_limit("CPU:0", limit)
    small = compress(trained, train, 0.02, validation_data=test, epochs=3)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    assert all(map(np.array_equal, trained.get_weights(), before))
    report = small.report()
    given, pruned, shared, coded = report.stages
    assert [each.name for each in report.stages] == [
        *("given", "pruned", "shared", "coded"),
    ]
    assert given.nbytes == 4 * trained.count_params()
    assert given.accuracy == accuracy(trained, test)
    trained.close()
    assert coded.accuracy >= given.accuracy - 0.02
    assert given.nbytes > 8 * coded.nbytes
    assert pruned.nbytes > shared.nbytes > coded.nbytes == small.nbytes
    assert given.train_peak > pruned.train_peak > shared.train_peak
    assert all(each.seconds > 0 and each.predict_peak > 0 for each in report.stages)
    assert given.predict_peak == pruned.predict_peak == shared.predict_peak
    streamed = small.streamed()
    planned = streamed.plan(32, program="predict").peak_bytes
    streamed.close()
    assert coded.predict_peak == planned != shared.predict_peak
    assert coded.train_peak == shared.train_peak
    assert all(len(line) <= 80 for line in str(report).splitlines())
    small.save(tmp_path / "a.mcz")
    assert (tmp_path / "a.mcz").stat().st_size == small.nbytes
    loaded = load(tmp_path / "a.mcz")
    rows = loaded.predict(test[0]).argmax(1)
    assert (rows == test[1]).mean() == pytest.approx(coded.accuracy)
    weights = [w for w in loaded.model().get_weights() if w.ndim > 1]
    for row, weight in zip(report.weights, weights, strict=True):
        left = weight[weight != 0]
        assert (row.size, row.kept) == (weight.size, len(left))
        assert row.values == len(np.unique(left)) <= 32
    with pytest.raises(RuntimeError, match="a file has none"):
        loaded.report()


def test_what_is_given_is_used(digits, trained):
    train, test = digits
    densities = sensitivity(trained, test, (0.5, 0.3)).densities(1.0)
    small = compress(
        trained,
        train,
        1.0,
        validation_data=mc.data.Dataset.from_tensor_slices(test).batch(50),
        density=densities,
        steps=2,
        bits={"a": 3, "b": 4},
        epochs=1,
        coder="none",
    )
    one, other = small.report().weights
    assert (one.kept, other.kept) == (np.ceil(0.3 * 4096), np.ceil(0.3 * 640))
    assert one.values <= 8
    assert other.values <= 16


@pytest.mark.parametrize(
    "stage", [share_weights, quantize_by_rate, quantize], ids=lambda s: s.__name__
)
def test_a_stage_alone_is_made_and_trained_within_a_limit(stage):
    """That of its own plan; a byte fewer than its smallest limit is refused."""
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((200,)), nn.Dense(100), nn.Dense(10)])
    model.compile("adam", "mse", on_oom="raise")
    staged = stage(model)
    limit = staged.plan(8).peak_bytes
    with pytest.raises(mc.errors.InfeasiblePlanError) as refused:
        staged.plan(8, 1000)
    smallest = refused.value.smallest_limit_bytes
    staged.close()
    model.close()
    assert smallest <= limit
    rng = np.random.default_rng(0)
    x, y = rng.random((16, 200), np.float32), rng.random((16, 10), np.float32)
    mc.config.set_memory_limit("CPU:0", max(limit, 4 * model.count_params()))
    staged = stage(model)
    model.close()
    before = staged.get_weights()
    mc.config.set_memory_limit("CPU:0", limit)
    mc.config.reset_memory_stats("CPU:0")
    staged.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    assert not all(map(np.array_equal, staged.get_weights(), before))
    report = staged.memory_report(verify=True)
    assert report.predicted_peak_bytes == report.measured_peak_bytes == limit
    staged.close()
    mc.config.set_memory_limit("CPU:0", smallest - 1)
    with pytest.raises(mc.errors.InfeasiblePlanError):
        staged.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.parametrize("form", ["list", "iterator"])
def test_batches_may_be_a_list_or_an_iterator_with_a_reset(digits, trained, form):
    x, y = digits[0]
    batches = [(x[i : i + 50], y[i : i + 50]) for i in (0, 50)]
    if form == "iterator":
        sets = [mc.data.DataSet(*each) for each in batches]
        batches = mc.data.ListDataSetIterator(sets, 50)
    small = compress(trained, batches, 1.0, density=0.3, steps=1, bits=3, epochs=1)
    assert small.report().stages[-1].nbytes == small.nbytes


def test_by_rate_and_with_a_warning(digits, trained):
    train, test = digits
    with pytest.warns(RuntimeWarning, match="accuracy fell by .* allow more"):
        small = compress(
            trained,
            train,
            0.0,
            validation_data=test,
            density=0.02,
            steps=1,
            quantizer="rate",
            step=1.0,
            epochs=1,
        )
    assert sum(row.kept for row in small.report().weights) <= 0.02 * 4736 + 2


class Spoiled(nn.Callback):
    """Lets the first training end with wrong outputs, until the second one begins."""

    trainings = 0

    def add(self, bias):
        layer = self.model.layers[-1]
        kernel, before = layer.get_weights()
        layer.set_weights([kernel, before + np.float32(bias) * (np.arange(10) == 0)])

    def on_train_begin(self, logs=None):
        self.trainings += 1
        if self.trainings == 2:
            self.add(-100)

    def on_train_end(self, logs=None):
        if self.trainings == 1:
            self.add(100)


def test_the_search_goes_on_after_one_failure(digits, trained):
    train, test = digits
    spoiled = Spoiled()
    options = {"validation_data": test, "epochs": 2, "bits": 4, "callbacks": [spoiled]}
    small = compress(trained, train, 0.05, **options)
    assert sum(row.kept for row in small.report().weights) <= 4736 // 4
    assert small.report().stages[-1].accuracy > 0.8


def test_the_step_is_searched_for(digits, trained):
    options = {"density": 0.5, "steps": 1, "epochs": 1, "quantizer": "rate"}
    small = compress(trained, digits[0], 1.0, **options)
    given = compress(trained, digits[0], 1.0, step=0.5, **options)
    for row, other in zip(small.report().weights, given.report().weights, strict=True):
        assert row.values < other.values


class Batches(nn.Callback):
    """The batches of trainings."""

    def on_train_begin(self, logs=None):
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1


def test_the_last_samples_are_held_out(digits, trained):
    (x, y), _ = digits
    last = x[900:], y[900:]
    batches = Batches()
    options = {"density": 0.5, "steps": 1, "bits": 4, "epochs": 1, "batch_size": 100}
    small = compress(
        trained, (x, y), 1.0, validation_split=0.25, callbacks=[batches], **options
    )
    assert small.report().stages[0].accuracy == accuracy(trained, last)
    assert batches.seen == 9
    trained.close()
    for data, options, message in (
        ((x, y), {"validation_split": 1.0}, r"must be in \[0, 1\)"),
        ((x, y), {"validation_split": 0.9999}, "leaves one part empty"),
        ([(x, y)], {"validation_split": 0.5}, "divides arrays"),
        (
            (x, y),
            {"validation_split": 0.5, "validation_data": last},
            "validation_split or validation_data, not both",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            compress(trained, data, **options)


def test_what_is_refused(digits, trained):
    train, _ = digits
    with pytest.raises(ValueError, match="unknown quantizer"):
        compress(trained, train, quantizer="kmeans")
    with pytest.raises(ValueError, match="max_accuracy_loss must be zero or more"):
        compress(trained, train, -0.1)
    with pytest.raises(ValueError, match=r"at most 1, got 2: .* is 0\.02"):
        compress(trained, train, 2)
    with pytest.raises(TypeError, match="a generator only once"):
        compress(trained, (train for _ in range(2)))
    with pytest.raises(ValueError, match=r"compile it with metrics=\['accuracy'\]"):
        compress(network(metrics=()), train)
    for options, message in (
        ({"coder": "zip"}, "coder must be one of"),
        ({"bits": 17}, "bits must be at most 16"),
        ({"density": {"c": 0.1}}, "'c' is none of a/kernel, b/kernel"),
        ({"step": 0}, "step must be above 0"),
        ({"density": {}}, "density names no weight"),
        ({"rate_weight": -1}, "rate_weight must be zero or more"),
        ({"rate_weight": 0.1}, "the quantizer 'k_means' takes no rate_weight"),
        ({"step": 0.5}, "the quantizer 'k_means' takes no step"),
        ({"quantizer": "rate", "bits": 4}, "the quantizer 'rate' takes no bits"),
    ):
        with pytest.raises(ValueError, match=message):
            compress(trained, None, **options)
    with pytest.raises(RuntimeError, match="compile"):
        compress(nn.Sequential([nn.Input((64,)), nn.Dense(10)]), train)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: mc.compression.prune(model, 0.5),
        mc.compression.share_weights,
        mc.compression.quantize,
    ],
    ids=["prune", "share_weights", "quantize"],
)
def test_training_moves_the_kernels_of_a_model_of_layers(make):
    model = mc.nn.Sequential(
        [
            mc.nn.Input((6,)),
            mc.nn.Dense(8, activation="relu", kernel_regularizer="l2"),
            mc.nn.Dense(3),
        ]
    )
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mc.nn.SGD(0.1), loss)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype(np.float32), rng.integers(0, 3, 32)
    made = make(model)
    before = made.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of weights that no loss depends on
        made.fit(x, y, epochs=1, batch_size=16, verbose=0)
    for old, new in zip(before, made.get_weights(), strict=True):
        assert not np.array_equal(old, new)
