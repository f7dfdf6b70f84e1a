"""Losses and metrics as functions: a number for each sample, at once and in steps."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import objectives as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, SHAPES

import memcfg as mc

nn = mc.nn
losses, metrics, ops = nn.losses, nn.metrics, nn.ops
FUNCTIONS = [name for name in losses.__all__ if hasattr(getattr(losses, name), "kind")]


def function_of(loss):
    """The function of a loss, and the loss's arguments."""
    kind = type(loss)
    function = next(
        each
        for each in (getattr(losses, name) for name in FUNCTIONS)
        if each.kind is kind
    )
    known = inspect.signature(function).parameters
    return function, {k: v for k, v in loss._settings().items() if k in known}


def test_each_loss_has_a_function():
    kinds = {getattr(losses, name).kind for name in FUNCTIONS}
    assert kinds == {*losses.KNOWN}


@given(name=st.sampled_from(sorted(CASES)), shape=SHAPES, seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_the_numbers_of_samples_are_numpys(name, shape, seed):
    loss, draw, values = CASES[name]
    t, p = draw(np.random.default_rng(seed), shape)
    function, options = function_of(loss)
    np.testing.assert_allclose(
        function(t, p, **options), values(t, p), rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_in_a_function_they_have_gradients(name):
    loss, draw, values = CASES[name]
    t, p = (np.asarray(x) for x in draw(np.random.default_rng(0), (4, 3)))
    t, p = (np.float32(x) if x.dtype.kind == "f" else x for x in (t, p))
    function, options = function_of(loss)

    @mc.function
    def both(t, p):
        return mc.value_and_grad(lambda p: ops.sum(function(t, p, **options)))(p)

    found, slopes = both(t, p)
    assert found == pytest.approx(values(t, p).sum(), rel=1e-3)
    way = np.random.default_rng(1).normal(size=p.shape)
    h = 1e-6
    wanted = [values(t, np.float64(p) + s * h * way).sum() for s in (1, -1)]
    expected = (wanted[0] - wanted[1]) / (2 * h)
    assert (slopes * way).sum() == pytest.approx(expected, rel=2e-3, abs=2e-4)


def test_one_number_of_the_whole_batch():
    random = np.random.default_rng(0)
    t, p = np.float32(random.integers(0, 2, (4, 3))), np.float32(random.random((4, 3)))
    hits = (t * p).sum()
    assert losses.dice(t, p) == pytest.approx(1 - 2 * hits / (t.sum() + p.sum()))
    assert losses.dice(t, p, axis=-1).shape == (4,)
    assert losses.mean_squared_error(t[0], p[0]).shape == ()

    def mine(y_true, y_pred):
        return losses.dice(y_true, y_pred) + 1.0

    model = nn.Sequential([nn.Input((3,)), nn.Dense(3, activation="sigmoid")])
    model.compile("sgd", mine)
    found = model.evaluate(p, t, verbose=0)
    q = model.predict(p, verbose=0)
    wanted = 2 - 2 * (t * q).sum() / (t.sum() + q.sum())
    assert found == pytest.approx(wanted, rel=1e-5)


def train(loss, metric, labels=False):
    random = np.random.default_rng(0)
    x = np.float32(random.normal(size=(24, 3)))
    y = random.integers(0, 4, 24).astype(np.int32)
    nn.utils.set_random_seed(0)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(4, activation="softmax")])
    model.compile("sgd", loss, metrics=[metric])
    target = y if labels else np.eye(4, dtype=np.float32)[y]
    return model.fit(x, target, batch_size=8, epochs=2, verbose=0).history


@pytest.mark.parametrize(
    ("loss", "metric", "of", "name", "labels"),
    [
        (
            losses.sparse_categorical_crossentropy,
            metrics.sparse_categorical_accuracy,
            losses.SparseCategoricalCrossentropy(),
            "sparse_categorical_accuracy",
            True,
        ),
        (
            losses.mean_squared_error,
            metrics.binary_accuracy,
            losses.MeanSquaredError(),
            "binary_accuracy",
            False,
        ),
        (losses.huber, losses.log_cosh, losses.Huber(), "log_cosh", False),
    ],
)
def test_compile_takes_functions(loss, metric, of, name, labels):
    found = train(loss, metric, labels)
    assert list(found) == [name, "loss"] or list(found) == ["loss", name]
    assert found == train(of, name, labels)


def test_a_loss_of_ones_own_uses_one():
    def mine(y_true, y_pred):
        return 2.0 * losses.mean_squared_error(y_true, y_pred)

    found = train(mine, mine)
    once = train(losses.MeanSquaredError(), "mse")
    assert found["loss"][0] == pytest.approx(2 * once["loss"][0], rel=0.2)
    np.testing.assert_allclose(found["loss"], found["mine"], rtol=1e-5)


def test_a_wrapper_has_the_arguments_of_a_function():
    t, p = np.float32([[0, 1]]), np.float32([[3, 1]])
    metric = metrics.MeanMetricWrapper(losses.huber, name="h", delta=0.5)
    assert metric(t, p) == pytest.approx(oracle.huber(t, p, 0.5).mean())
    wrapped = metrics.MeanMetricWrapper(metrics.binary_accuracy, threshold=2.0)
    assert wrapped(t, p) == 0.0


def test_accuracies():
    labels = np.int32([0, 2, 1])
    p = np.float32([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    hot = np.eye(3, dtype=np.float32)[labels]
    right = [1, 0, 1]
    np.testing.assert_array_equal(metrics.sparse_categorical_accuracy(labels, p), right)
    np.testing.assert_array_equal(metrics.categorical_accuracy(hot, p), right)
    np.testing.assert_array_equal(
        metrics.top_k_categorical_accuracy(hot, p, k=2), [1, 0, 1]
    )
    np.testing.assert_array_equal(
        metrics.sparse_top_k_categorical_accuracy(labels, p, k=3), [1, 1, 1]
    )
    np.testing.assert_array_equal(
        metrics.binary_accuracy(hot, p, threshold=0.4), (p > 0.4) == hot
    )


def test_wrong_arguments():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="targets must have shape"):
        losses.mean_squared_error(np.zeros((2, 4)), x)
    with pytest.raises(TypeError, match="missing a required argument: 'y_pred'"):
        losses.mean_squared_error(x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        losses.huber(x, x, epsilon=1)
    with pytest.raises(ValueError, match="label_smoothing must be in"):
        losses.binary_crossentropy(x, x, label_smoothing=2)


class TestLossesBetweenSamples:
    """A call that moves the batch gets all of it, and no part of it alone."""

    X = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)

    @staticmethod
    def between(y_true, y_pred):
        scores = nn.ops.matmul(y_pred, nn.ops.transpose(y_pred))
        places = nn.ops.arange(nn.ops.shape(y_pred)[0])
        return losses.sparse_categorical_crossentropy(places, scores, from_logits=True)

    def made(self, loss):
        nn.utils.set_random_seed(0)
        wide = [nn.Dense(512, "relu"), nn.Dense(256, "relu"), nn.Dense(4)]
        model = nn.Sequential([nn.Input((64,)), *wide])
        model.compile(nn.SGD(0.0), loss)
        return model

    def test_each_batch_is_compared_within_itself(self):
        model = self.made(self.between)
        history = model.fit(self.X, np.zeros(256), 96, shuffle=False, verbose=0).history
        p = model.predict(self.X, verbose=0).astype(np.float64)
        values = []
        for start in (0, 96, 192):
            scores = p[start : start + 96] @ p[start : start + 96].T
            top = scores.max(axis=1, keepdims=True)
            sums = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
            values += [*(sums - scores.diagonal())]
        np.testing.assert_allclose(history["loss"], np.mean(values), rtol=1e-4)

    def test_no_micro_batches(self):
        """The limit is enough for micro-batches of a loss of samples."""
        y = np.zeros((256, 4), np.float32)
        mc.config.set_memory_limit("CPU:0", 1900 * 1024)
        model = self.made("mse")
        with pytest.warns(mc.errors.FallbackWarning, match="accumulated gradients"):
            model.fit(self.X, y, 256, verbose=0)
        model.close()
        with pytest.raises(
            mc.errors.InfeasiblePlanError, match="between compares the samples"
        ):
            self.made(self.between).fit(self.X, y, 256, verbose=0)


def of_two_columns(y_true, y_pred):
    """The error of the first column where the second is 1."""
    return mc.nn.ops.mean(
        mc.nn.ops.abs(y_true[:, :1] - y_pred) * y_true[:, 1:], axis=-1
    )


class Numbered(mc.nn.utils.PyDataset):
    """Batches by number."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


STREAMS = {
    "generator": lambda batches: (each for each in batches),
    "list": list,
    "py_dataset": Numbered,
    "dataset": lambda batches: mc.data.Dataset.from_tensor_slices(
        tuple(np.concatenate(each) for each in zip(*batches, strict=True))
    ).batch(4),
    "mapped": lambda batches: STREAMS["dataset"](batches).map(lambda x, y: (x, y)),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_have_targets_of_other_shapes(kind):
    """Every batch counts once, also the one that tells the shape."""
    random = np.random.default_rng(0)
    batches = [
        (random.normal(size=(4, 3)).astype("f"), random.integers(0, 2, (4, 2)) * 1.0)
        for _ in range(3)
    ]
    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(1)])
    model.compile(mc.nn.optimizers.SGD(0.0), of_two_columns, metrics=[of_two_columns])
    x, y = (np.concatenate(each) for each in zip(*batches, strict=True))
    expected = np.mean(np.abs(y[:, :1] - model.predict(x, verbose=0)) * y[:, 1:])
    logs = model.evaluate(STREAMS[kind](batches), verbose=0)
    np.testing.assert_allclose(logs, [expected, expected], rtol=1e-5)
    history = model.fit(STREAMS[kind](batches), verbose=0).history
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)


def test_a_loss_may_have_a_call_of_its_own_kind():
    """One of the pairs of a batch, whose class overrides ``__call__``."""

    class OfPairs(losses.Loss):
        def __init__(self, temperature=1.0, name=None):
            super().__init__(name=name)
            self.temperature = temperature

        def __call__(self, labels, vectors, sample_weight=None):
            unit = nn.utils.normalize(vectors, axis=1)
            logits = ops.matmul(unit, ops.transpose(unit)) / self.temperature
            labels = ops.squeeze(labels)
            rows, columns = ops.expand_dims(labels, 1), ops.expand_dims(labels, 0)
            same = ops.cast(ops.equal(rows, columns), "float32")
            logs = logits - ops.logsumexp(logits, axis=1, keepdims=True)
            return -ops.mean(ops.sum(same * logs, axis=1) / ops.sum(same, axis=1))

    random = np.random.default_rng(0)
    x = random.normal(size=(8, 4)).astype("f")
    labels = random.integers(0, 3, (8, 1))
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    model.compile("sgd", OfPairs(0.5, name="pairs"))
    y = model.predict(x, verbose=0).astype(np.float64)
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)
    logits = unit @ unit.T / 0.5
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    same = labels == labels.T
    expected = -((same * logs).sum(1) / same.sum(1)).mean()
    found = model.evaluate(x, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(model.fit(x, labels, batch_size=8, verbose=0).history["loss"]) == 1


def of_any_targets():
    """A model whose loss is a user's, of targets of any shape."""
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    model.compile("sgd", lambda y, p: nn.ops.mean((y - p[:, :1]) ** 2, -1))
    return model


def batches():
    """Yield three batches."""
    for i in range(3):
        yield np.full((4, 3), i, "f"), np.zeros((4, 1), "f")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": "x"}, "epochs"),
        ({"batch_size": 4}, "batch_size"),
        ({"validation_steps": 2}, "validation_steps"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"validation_freq": 0}, "validation_freq"),
        ({"verbose": "loud"}, "verbose"),
    ],
)
def test_a_refused_fit_takes_no_batch_of_a_generator(wrong, words):
    model, given = of_any_targets(), batches()
    with pytest.raises((TypeError, ValueError), match=words) as refused:
        model.fit(given, **{"verbose": 0, **wrong})
    assert "chain" not in str(refused.value)
    assert len(list(given)) == 3


@pytest.mark.parametrize(
    "wrong", [{"steps": "x"}, {"batch_size": 4}, {"sample_weight": np.ones(4)}]
)
def test_a_refused_evaluation_takes_no_batch_of_a_generator(wrong):
    model, given = of_any_targets(), batches()
    with pytest.raises((TypeError, ValueError)) as refused:
        model.evaluate(given, verbose=0, **wrong)
    assert "chain" not in str(refused.value)
    assert len(list(given)) == 3


def test_shapes_of_targets_leave_caches_and_shuffles_alone():
    read = []

    def doubled(x, y):
        read.append(len(read))
        return 2 * x, y

    x, y = np.ones((32, 3), "f"), np.zeros((32, 1), "f")
    made = mc.data.Dataset.from_tensor_slices((x, y)).batch(4).map(doubled)
    made = made.cache().shuffle(8, seed=0)
    model = of_any_targets()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(made, epochs=2, verbose=0)
    probed = len(read) - 8
    assert probed <= 2
