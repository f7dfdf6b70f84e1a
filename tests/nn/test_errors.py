"""What bad input gets: a class, words, and a model that is as it was."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import (
    InfeasiblePlanError,
    NonFiniteLossError,
    ResourceExhaustedError,
)

nn = mc.nn


def in_use():
    return mc.config.get_memory_info("CPU:0")["current"]


@pytest.fixture
def same(dense):
    """Return a model, and check afterwards that no weight and no byte changed."""
    model = dense(nn.SGD(0.1, momentum=0.9))
    before = model.get_weights()
    yield model
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    assert model.optimizer.iterations == 0
    assert in_use() == 0


X = np.zeros((6, 6), np.float32)
Y = np.array([0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, Y[:5], r"differ in number: 6 samples, y has shape \(5,\)"),
        (X[:0], Y[:0], "x is empty"),
        (X[:, :5], Y, r"\(6, 5\), but the model reads \(None, 6\)"),
        (X[:, None], Y, r"\(6, 1, 6\), but the model reads \(None, 6\)"),
        (X[0], Y, "axis of samples"),
        (X, np.stack([Y, Y], 1), r"y has shape \(6, 2\)"),
        (X, np.array(3), r"y has shape \(\)"),
        (X, np.where(Y == 3, 4, Y), r"label 4 at y\[3\] is out of range"),
        (X, np.where(Y == 2, -1, Y), r"label -1 at y\[2\] is out of range"),
        (X, Y.astype("uint64") + 2**63, "out of range"),
        (X, Y + 0.5, "y holds 0.5, but whole numbers are read here"),
        (X, np.where(Y == 3, np.nan, Y), "y holds nan, but whole numbers"),
        (X, np.where(Y == 3, 1e30, Y), r"y holds 1e\+30, but whole numbers"),
        (X, np.where(Y == 3, 4.0, Y), r"label 4 at y\[3\] is out of range"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_wrong_values(same, method, x, y, message):
    with pytest.raises(ValueError, match=message):
        getattr(same, method)(x, y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X.astype(complex), Y, "array of numbers, got complex128"),
        ([["a"] * 6] * 6, Y, "an array, or what gives one, .* not list"),
        ([[1.0] * 6, [1.0]], Y, "x, of list, gives no array of numbers"),
        (None, Y, "not NoneType$"),
        (np.ma.masked_array(X), Y, "masked"),
        (X, None, "y is an array, or what gives one, .* not NoneType: "),
        (X, Y.astype(str), "holds labels or numbers, got <U"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_wrong_types(same, method, x, y, message):
    with pytest.raises(TypeError, match=message):
        getattr(same, method)(x, y)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_one_hot_labels(same, dtype):
    """What the message says works."""
    labels = np.eye(4, dtype=dtype)[Y]
    with pytest.raises(ValueError, match=r"one-hot, pass y\.argmax\(1\)$"):
        same.fit(X, labels, verbose=0)
    same.evaluate(X, labels.argmax(1), verbose=0)
    same.close()


@pytest.mark.parametrize("place", [1, 5])
def test_a_wrong_label_is_named_by_its_place_in_what_was_given(same, place):
    """Also where a part is held out."""
    labels = Y.copy()
    labels[place] = 9
    with pytest.raises(ValueError, match=rf"label 9 at y\[{place}\] "):
        same.fit(X, labels, verbose=0, validation_split=0.5)
    with pytest.raises(ValueError, match=r"^x has shape \(6, 3\)"):
        same.fit(X[:, :3], Y, verbose=0, validation_split=0.5)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be positive, got 0"),
        ({"batch_size": -2}, ValueError, "batch_size must be positive"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer"),
        ({"epochs": 0}, ValueError, "epochs must be positive"),
        ({"epochs": None}, TypeError, "epochs must be an integer"),
        ({"initial_epoch": -1}, ValueError, "initial_epoch must be zero or more"),
        ({"initial_epoch": False}, TypeError, "initial_epoch must be an integer"),
        ({"initial_epoch": 0.0}, TypeError, "initial_epoch must be an integer"),
        ({"verbose": 3}, ValueError, 'verbose is "auto", 0, 1 or 2'),
        ({"on_nan": "stop"}, ValueError, 'on_nan is "raise" or "ignore"'),
        ({"shuffle": "batch"}, TypeError, "shuffle"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"validation_split": 1.0}, ValueError, "validation_split must be in"),
        ({"validation_split": -0.1}, ValueError, "validation_split must be in"),
        ({"validation_split": 0.9}, ValueError, "leaves one part empty"),
        ({"validation_data": X}, ValueError, r"tuple \(x, y\)"),
        ({"validation_data": (X, Y[:2])}, ValueError, "differ in number"),
        ({"validation_data": (X[:, :3], Y)}, ValueError, "validation x has shape"),
        ({"validation_data": (X, Y + 9)}, ValueError, r"validation y\[0\]"),
        ({"validation_data": (X[:0], Y[:0])}, ValueError, "validation x is empty"),
        ({"validation_batch_size": 0}, ValueError, "validation_batch_size"),
        (
            {"validation_split": 0.5, "validation_data": (X, Y)},
            ValueError,
            "not both",
        ),
    ],
)
def test_wrong_options_of_fit(same, options, kind, message):
    with pytest.raises(kind, match=message):
        same.fit(X, Y, **({"verbose": 0} | options))


@pytest.mark.parametrize("method", ["predict", "predict_on_batch"])
@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        (X[:, :5], ValueError, r"\(6, 5\), but the model reads \(None, 6\)"),
        (X[:, None], ValueError, r"\(6, 1, 6\), but the model reads \(None, 6\)"),
        (X[:0], ValueError, "x is empty"),
        (X.astype(complex), TypeError, "got complex128"),
        (5, TypeError, "x is an array, or what gives one"),
    ],
)
def test_wrong_data_to_predict(same, method, x, kind, message):
    with pytest.raises(kind, match=message):
        getattr(same, method)(x)


def test_one_sample_alone_is_reported_in_its_own_shape():
    model = nn.Sequential([nn.Input((8, 8, 1)), nn.Flatten(), nn.Dense(2)])
    image = np.ones((8, 8, 1), np.float32)
    told = r"x has shape \(8, 8, 1\), .* \(None, 8, 8, 1\): .* as x\[None\]$"
    with pytest.raises(ValueError, match=told):
        model.predict(image)
    with pytest.raises(ValueError, match=r"\(8, 8\), but .* \(None, 8, 8, 1\)$"):
        model.predict(image[..., 0])
    grey = np.ones((3, 8, 8), np.float32)  # a last axis is added, as in Keras
    assert model.predict(grey, verbose=0).shape == (3, 2)
    assert model.predict(image[None], verbose=0).shape == (1, 2)


def test_an_empty_part_of_a_split(same):
    with pytest.raises(ValueError, match="leaves one part empty"):
        same.fit(X[:1], Y[:1], validation_split=0.5, verbose=0)


def test_nothing_works_before_compile():
    model = nn.Sequential([nn.Dense(4)])
    for call in (
        lambda: model.fit(X, Y),
        lambda: model.evaluate(X, Y),
        lambda: model.train_on_batch(X, Y),
        lambda: model.test_on_batch(X, Y),
        lambda: model.plan(4),
    ):
        with pytest.raises(RuntimeError, match=r"call compile\(optimizer, loss\)"):
            call()
    with pytest.raises(AttributeError, match=r"call compile\(optimizer, loss\)"):
        _ = model.optimizer


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"optimizer": "rmsprob"}, ValueError, "unknown optimizer"),
        ({"optimizer": 3}, TypeError, "an optimizer must be"),
        ({"optimizer": nn.SGD}, TypeError, r"pass an optimizer, SGD\(\)"),
        ({"loss": "least"}, ValueError, "unknown loss"),
        ({"loss": None, "metrics": ["mse"]}, TypeError, "training minimises a loss"),
        ({"metrics": "accuracy"}, TypeError, "metrics is a list"),
        ({"metrics": ["area"]}, ValueError, "unknown metric 'area'"),
        ({"metrics": [3]}, TypeError, "a metric must be a name"),
        ({"metrics": ["accuracy", "accuracy"]}, ValueError, "duplicate"),
        ({"memory": "magic"}, ValueError, "unknown memory policy"),
        ({"memory": "exactly"}, ValueError, "did you mean 'exact'"),
        ({"memory": mc.plan.exact}, TypeError, "call it, or write its name, 'exact'$"),
        ({"memory": 3}, TypeError, r"set_memory_limit\('CPU:0', 3\)"),
        ({"memory": "4MiB"}, ValueError, r"with memcfg.budget\('4MiB'\)"),
        ({"memory": "50%"}, ValueError, r"set_memory_limit\('CPU:0', '50%'\)"),
        ({"memory": None, "memory_limit": "4MiB"}, TypeError, r"budget\('4MiB'\)"),
        ({"on_oom": "shar"}, ValueError, "did you mean 'share'"),
        ({"on_oom": "ignore"}, ValueError, "'?raise'?, and the policies that compile"),
        (
            {"memory": lambda graph, limit=None: mc.plan.share()(graph, limit)},
            TypeError,
            r"limit_bytes=...\): name the limit of <lambda>\(graph, limit=None\) so$",
        ),
        ({"memory": mc.plan.share}, TypeError, "or write its name, 'share'$"),
        (
            {"memory": mc.plan.POLICIES["gist_fp8"]},
            TypeError,
            "or write its name, 'gist_fp8'$",
        ),
        ({"jit_compile": True}, TypeError, "jit_compile"),
    ],
)
def test_wrong_arguments_of_compile(same, loss, options, kind, message):
    before = same.optimizer
    with pytest.raises(kind, match=message):
        same.compile(**({"optimizer": "sgd", "loss": loss} | options))
    assert same.optimizer is before


def test_a_loss_of_probabilities_of_a_model_without_softmax_is_refused(rows):
    model = nn.Sequential([nn.Dense(4)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="pass from_logits=True, or end the model"):
        model.fit(*rows, verbose=0)


def test_labels_are_as_many_as_the_output_has_rows(loss, images):
    model = nn.Sequential([nn.Conv2D(5, 3, name="last")])
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match=r"\(40,\), but the loss reads \(None, 6, 6\)"):
        model.fit(*images, verbose=0)


def poisoned(rows, place):
    x, y = rows
    x = x.copy()
    x[place] = np.nan
    return x, y


@pytest.mark.parametrize("make", [lambda: nn.SGD(0.1, momentum=0.9), nn.Adam])
def test_a_loss_that_is_not_finite_stops_before_the_update(loss, rows, make):
    """Weights, moving averages and optimizer state are those of the step before."""
    x, y = rows

    def trained():
        nn.set_random_seed(3)
        model = nn.Sequential([nn.BatchNormalization(), nn.Dense(4)])
        model.compile(make(), loss)
        model.fit(x, y, 8, verbose=0, shuffle=False)
        return model

    expected = trained()
    expected.fit(x[:16], y[:16], 8, verbose=0, shuffle=False)
    model = trained()
    with pytest.raises(NonFiniteLossError, match="nan in epoch 2/2, step 3"):
        model.fit(*poisoned(rows, 17), 8, 2, initial_epoch=1, verbose=0, shuffle=False)
    for found in (expected, model):
        assert found.optimizer.iterations == 6
        found.train_on_batch(x, y)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.isfinite(first).all()
        assert np.array_equal(first, second)


def test_a_loss_that_is_not_finite_can_be_ignored(dense, rows):
    model = dense()
    history = model.fit(*poisoned(rows, 3), verbose=0, on_nan="ignore")
    assert np.isnan(history.history["loss"][0])
    assert model.optimizer.iterations == 1
    assert np.isnan(model.get_weights()[0]).any()


def test_train_on_batch_refuses_a_loss_that_is_not_finite(dense, rows):
    model = dense()
    before = model.get_weights()
    with pytest.raises(NonFiniteLossError, match="the loss is nan in step 1"):
        model.train_on_batch(*poisoned(rows, 3))
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    assert np.isnan(model.train_on_batch(*poisoned(rows, 3), on_nan="ignore"))


def test_a_caught_error_does_not_hold_the_arena(dense, rows):
    model = dense()
    with pytest.raises(NonFiniteLossError) as caught:
        model.fit(*poisoned(rows, 3), verbose=0)
    model.close()
    assert in_use() == 0
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("wrong", ["label", "shape", "kernel"])
def test_a_failed_first_fit_leaves_a_model_unbuilt(loss, images, wrong):
    """The next data may have another shape, and weights are those of the seed."""
    x, y = images

    def make():
        nn.set_random_seed(3)
        layers = [nn.Conv2D(4, 5), nn.Flatten(), nn.Dense(5)]
        model = nn.Sequential(layers)
        model.compile("sgd", loss)
        return model

    expected = make()
    expected.fit(x, y, verbose=0, seed=0)
    model = make()
    bad = {
        "label": (x[:, 1:], y + 7),
        "shape": (x[:, 1:], y[1:]),
        "kernel": (x[:, 5:], y),
    }
    with pytest.raises(ValueError, match=r"label|number|does not fit"):
        model.fit(*bad[wrong], verbose=0, seed=0)
    assert not model.built
    model.fit(x, y, verbose=0, seed=0)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_a_limit_that_is_too_small(cpu, loss, images):
    configuration = mc.config.LogicalDeviceConfiguration(memory_limit="20KiB")
    mc.config.set_logical_device_configuration(cpu, [configuration])
    model = nn.Sequential([nn.Input((8, 8, 3)), nn.Conv2D(4, 3), nn.Flatten()])
    model.add(nn.Dense(5))
    model.compile("sgd", loss, on_oom="raise")
    before = model.get_weights()
    with pytest.raises(InfeasiblePlanError) as caught:
        model.fit(*images, batch_size=40, verbose=0)
    assert in_use() == 0
    assert caught.value.smallest_limit_bytes > 20 * 1024
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    with pytest.raises(InfeasiblePlanError):
        model.plan(40)


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ("auto", "Raise the limit or lower the batch size."),
        ("sqrt_checkpoint", "Raise the limit or lower the batch size."),
        ("share", r"batch size, or plan with auto\(\), which can recompute."),
        ("keep_all", r"batch size, or plan with auto\(\), which reuses memory."),
    ],
)
def test_only_methods_that_may_need_less_are_advised(dense, rows, policy, steps):
    model = dense(memory=policy, on_oom="raise")
    mc.config.set_memory_limit("CPU:0", 1024)
    with pytest.raises(InfeasiblePlanError, match=steps):
        model.fit(*rows, verbose=0)


def test_where_memory_went_is_told_with_the_way_to_have_it_back(dense, rows):
    """Another model's arena is one `close` away."""
    held, refused = dense(), dense()
    alone = refused.plan(30).peak_bytes
    held.fit(*rows, batch_size=30, verbose=0)
    mc.config.set_memory_limit("CPU:0", alone + 64)
    names = (
        f"Held by: model {held.name} .*\\nclose\\(\\) of a model releases its memory"
    )
    with pytest.raises(InfeasiblePlanError, match=names) as caught:
        refused.fit(*rows, batch_size=30, verbose=0)
    assert caught.value.owners == {f"model {held.name}": held.memory_plan.peak_bytes}
    with pytest.raises(ResourceExhaustedError, match=names):
        mc.config.logical_device().pool.allocate(alone)
    held.close()
    refused.fit(*rows, batch_size=30, verbose=0)


def test_the_third_argument_of_compile_is_not_the_metrics(dense, loss):
    """Keras's is `loss_weights`: metrics are given by name."""
    with pytest.raises(TypeError, match="metrics by name"):
        dense().compile("sgd", loss, ["accuracy"])


class Counted(nn.Zeros):
    """An initializer that counts its weights, and fails when it is told to."""

    def __init__(self, fails=0):
        self.fails = fails
        self.calls = 0

    def draw(self, shape, seed):
        self.calls += 1
        if self.calls == self.fails:
            raise ArithmeticError("no number came")
        return super().draw(shape, seed)


@pytest.mark.parametrize("method", ["fit", "predict", "plan"])
@pytest.mark.parametrize("units", [2**20, 2**40])
def test_weights_that_do_not_fit_are_refused_before_they_are_drawn(
    cpu, loss, rows, method, units
):
    mc.config.set_memory_limit(cpu, "1MiB")
    counted = Counted()
    layers = [nn.Input((6,)), nn.Dense(units, kernel_initializer=counted), nn.Dense(4)]
    model = nn.Sequential(layers)
    model.compile("adam", loss)
    arguments = {"fit": rows, "predict": rows[:1], "plan": [8]}[method]
    tracemalloc.start()
    try:
        with pytest.raises(InfeasiblePlanError):
            getattr(model, method)(*arguments)
        assert (
            tracemalloc.get_traced_memory()[1] < 2**22
        )  # of weights of 24 MiB at least
    finally:
        tracemalloc.stop()
    assert counted.calls == 0
    assert mc.config.get_memory_info("CPU:0") == {"current": 0, "peak": 0}


def test_memory_that_the_machine_has_not_is_refused_before_weights_are_drawn(loss):
    """Without a limit, too; the weights would be larger than the address space."""
    counted = Counted()
    layers = [nn.Dense(2**29, kernel_initializer=counted) for _ in range(2)]
    model = nn.Sequential([nn.Input((6,)), *layers])
    with pytest.raises(ResourceExhaustedError):
        model.predict(X, verbose=0)
    assert counted.calls == 0
    assert in_use() == 0


@pytest.mark.parametrize("fails", [1, 2])
def test_an_initializer_that_fails_leaves_the_model_usable(loss, rows, fails):
    def make(initializer):
        nn.set_random_seed(3)
        model = nn.Sequential(
            [
                nn.Input((6,)),
                nn.Dense(5, activation="relu", name="first"),
                nn.Dense(4, name="second", bias_initializer=initializer),
                nn.BatchNormalization(beta_initializer=initializer),
            ]
        )
        model.compile("adam", loss)
        return model

    model = make(Counted(fails))
    with pytest.raises(ArithmeticError, match="no number came"):
        model.fit(*rows, verbose=0, seed=0)
    assert in_use() == 0
    assert model.optimizer.iterations == 0
    expected = make(Counted())
    for trained in (model, expected):
        trained.fit(*rows, verbose=0, seed=0)
    for first, second in zip(expected.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_a_program_that_does_not_fit_leaves_those_that_do(cpu, loss, images):
    x, y = images
    model = nn.Sequential([nn.Input((8, 8, 3)), nn.Conv2D(4, 3), nn.Flatten()])
    model.add(nn.Dense(5))
    model.compile(nn.SGD(0.0), loss, on_oom="raise")
    limit = model.plan(4).peak_bytes
    mc.config.set_memory_limit(cpu, limit)
    expected = model.train_on_batch(x[:4], y[:4])
    assert in_use() == limit
    with pytest.raises(InfeasiblePlanError):
        model.train_on_batch(x, y)
    assert in_use() == limit
    assert model.train_on_batch(x[:4], y[:4]) == expected


@pytest.mark.parametrize("wrong", [-1, 7])
def test_indices_that_an_embedding_has_not_are_told(wrong):
    model = nn.Sequential([nn.Input((3,), dtype="int32"), nn.Embedding(7, 2)])
    model.add(nn.Flatten())
    model.compile("sgd", "mse")
    x = np.arange(6).reshape(2, 3)
    y = np.zeros((2, 6))
    model.fit(x, y, verbose=0)
    x[1, 1] = wrong
    for run in (model.fit, model.train_on_batch, lambda x, _: model.predict(x)):
        with pytest.raises(ValueError, match=f"index {wrong}.* indices are 0 to 6"):
            run(x, y)
