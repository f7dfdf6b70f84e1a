"""Metrics that the `call` of a layer updates, as in Keras."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
ops = nn.ops


class Watched(nn.Layer):
    """A Dense layer that measures its inputs, and in training a number of the batch."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.size = nn.metrics.Mean(name="size")
        self.curve = [nn.metrics.AUC(num_thresholds=11, name="curve")]
        self.dense = nn.Dense(3)

    def call(self, x, training=None):
        self.size.update_state(ops.abs(x))
        self.curve[0].update_state(ops.cast(x > 0, "float32"), ops.sigmoid(x))
        if training:
            self.size.update_state(ops.max(x), 3.0)
        return self.dense(x)


class Outer(nn.Layer):
    """Calls a layer that measures twice."""

    def __init__(self):
        super().__init__()
        self.inner = Watched("inner")

    def call(self, x):
        return self.inner(self.inner(x))


def functional():
    x = nn.Input((3,))
    return nn.Model(x, nn.Dense(1)(Watched("watched")(x)))


def subclass():
    class Own(nn.Model):
        def __init__(self):
            super().__init__()
            self.watched, self.last = Watched("watched"), nn.Dense(1)

        def call(self, x):
            return self.last(self.watched(x))

    return Own()


def nested():
    x = nn.Input((3,))
    chain = nn.Sequential([nn.Input((3,)), Watched("watched"), nn.Dense(2)])
    return nn.Model(x, nn.Dense(1)(chain(x)))


MODELS = {
    "functional": functional,
    "chain": lambda: nn.Sequential([Watched("watched"), nn.Dense(1)]),
    "subclass": subclass,
    "nested": nested,
}


def data(size=10):
    random = np.random.default_rng(0)
    return random.normal(size=(size, 3)).astype("f"), np.zeros((size, 1), "f")


def size_of(batches, *, training):
    """The mean of what `Watched` adds, by NumPy: a value has the weight of its row."""
    total = sum(float(np.abs(each).mean(axis=1).sum()) for each in batches)
    count = sum(len(each) for each in batches)
    if training:
        total += sum(3 * float(each.max()) for each in batches)
        count += 3 * len(batches)
    return total / count


@pytest.mark.parametrize("kind", MODELS)
def test_logs_have_what_layers_measure(kind):
    x, y = data()
    model = MODELS[kind]()
    model.compile("sgd", "mse", metrics=["mae"])
    batches = [x[:4], x[4:8], x[8:]]
    history = model.fit(
        x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)
    )
    of = history.history
    assert np.allclose(of["size"], size_of(batches, training=True), rtol=1e-6)
    assert np.allclose(of["val_size"], size_of([x], training=False), rtol=1e-6)
    logs = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    alone = nn.metrics.AUC(num_thresholds=11)
    alone.update_state((x > 0).astype("f"), 1 / (1 + np.exp(-x)))
    assert logs["curve"] == pytest.approx(alone.result())
    assert logs["size"] == pytest.approx(size_of(batches, training=False))
    assert [each.name for each in model.metrics] == ["loss", "mae", "size", "curve"]


def test_each_call_of_a_shared_layer_counts():
    x, y = data()
    model = nn.Sequential([nn.Input((3,)), Outer(), nn.Dense(1)])
    model.compile("sgd", "mse")
    inner = model.layers[0].inner
    kernel, bias = inner.dense.get_weights()
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    found = size_of([x, x @ kernel + bias], training=False)
    assert logs["size"] == pytest.approx(found, rel=1e-6)


def test_arrays_and_functions_measure():
    x, _ = data()
    layer = Watched()
    layer(x)
    layer(x[:4], training=True)
    total = np.abs(x).mean(axis=1).sum() + np.abs(x[:4]).mean(axis=1).sum()
    assert layer.size.result() == pytest.approx((total + 3 * x[:4].max()) / 17)
    assert layer.metrics == [layer.size, *layer.curve]
    layer.size.reset_state()
    mc.function(lambda given: ops.sum(layer(given)))(x)
    assert layer.size.result() == pytest.approx(size_of([x], training=False))


def test_a_mask_weighs():
    class Steps(nn.Layer):
        supports_masking = True

        def __init__(self):
            super().__init__()
            self.count = nn.metrics.Mean(name="count")

        def call(self, x, mask=None):
            self.count.update_state(ops.sum(ops.cast(mask, "float32"), axis=-1))
            return x

    x = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 1, 1, 2]], np.int32)
    model = nn.Sequential(
        [
            nn.Input((None,), dtype="int32"),
            nn.layers.Embedding(5, 2, mask_zero=True),
            Steps(),
            nn.layers.LSTM(2),
        ]
    )
    model.compile("sgd", "mse")
    logs = model.evaluate(x, np.zeros((3, 2)), verbose=0, return_dict=True)
    assert logs["count"] == pytest.approx(7 / 3)


def test_weights_and_bytes_are_those_of_a_model_that_does_not_measure():
    x, y = data()
    kept = []
    for measures in (False, True):
        nn.utils.set_random_seed(0)

        class Scaled(nn.Layer):
            def __init__(self, measures):
                super().__init__()
                self.mean = nn.metrics.Mean(name="mean") if measures else None
                self.dense = nn.Dense(64, activation="tanh")

            def call(self, x):
                y = self.dense(x)
                if self.mean is not None:
                    self.mean.update_state(y)
                return y

        model = nn.Sequential([nn.Input((3,)), Scaled(measures), nn.Dense(1)])
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=5, epochs=3, verbose=0, shuffle=False)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        kept.append(model.get_weights())
    assert all(map(np.array_equal, *kept))


def test_what_cannot_be_measured_is_said():
    class Best(nn.Metric):
        def __init__(self):
            super().__init__(name="best")
            self.most = self.add_variable(name="most")

        def update_state(self, values):
            self.most.assign(ops.maximum(self.most, ops.max(values)))

    class OfOwn(nn.Layer):
        def __init__(self):
            super().__init__()
            self.best = Best()

        def call(self, x):
            self.best.update_state(x)
            return x

    with pytest.raises(ValueError, match="variables of a metric of your own"):
        OfOwn()(nn.Input((3,)))

    mean = nn.metrics.Mean()
    with pytest.raises(TypeError, match="takes arrays, or tensors of a function"):
        mean.update_state(nn.Input((3,)))


def test_a_metric_that_no_layer_holds_and_only_training_updates_is_refused():
    mean = nn.metrics.Mean(name="elsewhere")

    class Elsewhere(nn.Layer):
        def call(self, x, training=None):
            if training:
                mean.update_state(x)
            return x

    x, y = data()
    model = nn.Sequential([nn.Input((3,)), Elsewhere(), nn.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"'elsewhere', which is no attribute"):
        model.fit(x, y, verbose=0)


class Sometimes(nn.Layer):
    """A layer that holds a metric, and updates it in training, or never."""

    def __init__(self, updates, name=None):
        super().__init__(name=name)
        self.updates = updates
        self.size = nn.metrics.Mean(name="size")

    def call(self, x, training=None):
        if self.updates and training:
            self.size.update_state(ops.abs(x))
        return x


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("updates", [False, True])
def test_models_run_in_parts_unless_a_layer_updates_its_metric(updates, nested):
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")
    layers = [nn.Input((8,)), Sometimes(updates, "watched")]
    model = nn.Sequential([*layers, nn.Dense(256), nn.Dense(1)])
    if nested:
        model = nn.Sequential([nn.Input((8,)), model])
    model.compile("sgd", "mse", on_oom=["micro_batch"])
    model.fit(x, x[:, :1], batch_size=64, verbose=0)
    limit = model.plan(64).peak_bytes * 3 // 5
    model.close()
    with mc.budget(limit):
        if updates:
            words = "since layer 'watched' updates the metric 'size'"
            with pytest.raises(mc.errors.ResourceExhaustedError, match=words):
                model.fit(x, x[:, :1], batch_size=64, verbose=0)
            return
        with pytest.warns(mc.errors.FallbackWarning, match="accumulated gradients"):
            logs = model.fit(x, x[:, :1], batch_size=64, verbose=0).history
    assert list(logs) == ["loss"]
