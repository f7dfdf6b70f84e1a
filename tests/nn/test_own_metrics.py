"""Metrics with variables of one's own, as in Keras, and those of several numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
ops, metrics = nn.ops, nn.metrics


class Squares(nn.Metric):
    """The weighted mean squared error."""

    def __init__(self, name="squares", **options):
        super().__init__(name=name, **options)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = ops.mean(ops.square(y_true - y_pred), axis=-1)
        weight = ops.ones_like(values) if sample_weight is None else sample_weight
        self.total.assign_add(ops.sum(values * weight))
        self.count.assign_add(ops.sum(weight))

    def result(self):
        return self.total / self.count


class Largest(nn.Metric):
    """The largest output, which is no sum over batches."""

    _direction = "up"

    def __init__(self):
        super().__init__(name="largest")
        self.most = self.add_variable(initializer=nn.initializers.Constant(-9))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(ops.maximum(self.most, ops.max(y_pred)))

    def result(self):
        return self.most + 0.0

    def reset_state(self):
        self.most.assign(-9.0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_batches_at_once_and_in_a_function(sizes, seed):
    random = np.random.default_rng(seed)
    pairs = [np.float32(random.normal(size=(2, n, 3))) for n in sizes]
    weights = [np.float32(random.uniform(0.5, 2, n)) for n in sizes]
    at_once, in_function, most = Squares(), Squares(), Largest()

    @mc.function
    def step(t, p, w):
        in_function.update_state(t, p, w)
        most.update_state(t, p)
        return in_function.result(), most.result()

    for (t, p), w in zip(pairs, weights, strict=True):
        at_once.update_state(t, p, sample_weight=w)
        found = step(t, p, w)
    errors = np.concatenate([((t - p) ** 2).mean(-1) for t, p in pairs])
    wanted = np.average(errors, weights=np.concatenate(weights))
    assert at_once.result() == pytest.approx(wanted, rel=1e-5)
    assert found[0] == pytest.approx(wanted, rel=1e-5)
    assert found[1] == max(p.max() for _, p in pairs) == most.result()
    at_once.reset_state()
    assert [float(each.numpy()) for each in at_once.variables] == [0, 0]


def model_of(given):
    nn.utils.set_random_seed(1)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2), nn.Dense(1)])
    model.compile(nn.SGD(0.01), "mse", metrics=given)
    return model


def data():
    random = np.random.default_rng(0)
    x = np.float32(random.normal(size=(22, 3)))
    return x, x[:, :1] - x[:, 1:2]


def test_a_model_is_compiled_with_them():
    """Logs of `fit` and `evaluate` are those of the metrics that memcfg has."""
    x, y = data()
    model, plain = model_of([Squares(), Largest(), "mae"]), model_of(["mse", "mae"])
    options = {"batch_size": 8, "epochs": 3, "verbose": 0, "shuffle": False}
    found = model.fit(x, y, validation_data=(x, y), **options).history
    wanted = plain.fit(x, y, validation_data=(x, y), **options).history
    for name, other in (("squares", "mse"), ("mae", "mae"), ("loss", "loss")):
        for each in (f"{name} {other}", f"val_{name} val_{other}"):
            one, two = each.split()
            np.testing.assert_allclose(found[one], wanted[two], rtol=1e-5)
    for one, two in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    scores = model.evaluate(x, y, return_dict=True, verbose=0)
    assert scores["largest"] == pytest.approx(model.predict(x, verbose=0).max())
    assert model._own_steps().direction("largest") == "up"


def test_weighted_metrics_have_weights():
    x, y = data()
    weight = np.linspace(0, 1, len(x), dtype=np.float32)
    nn.utils.set_random_seed(1)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
    model.compile("sgd", "mse", weighted_metrics=[Squares()])
    found = model.evaluate(x, y, sample_weight=weight, return_dict=True, verbose=0)
    errors = (model.predict(x, verbose=0) - y)[:, 0] ** 2
    assert found["squares"] == pytest.approx(np.average(errors, weights=weight))


def test_compiling_again_without_them_has_built_in_steps():
    model = model_of([Squares])
    with pytest.raises(NotImplementedError, match="is for the built-in steps"):
        model.largest_batch("1MiB")
    with pytest.raises(ValueError, match="leave workspace modes"):
        model.compile("sgd", "mse", metrics=[Squares()], training_workspace_mode="none")
    model.compile("sgd", "mse", metrics=["mae"])
    assert model._own_steps() is None


def test_copies_and_names():
    metric = Squares()
    metric.update_state(np.float32([[1.0]]), np.float32([[3.0]]))
    other = copy.deepcopy(metric)
    other.update_state(np.float32([[1.0]]), np.float32([[2.0]]))
    assert (metric.result(), other.result()) == (4.0, 1.0)
    assert [each.name for each in metric.variables] == ["total", "count"]
    with pytest.raises(ValueError, match="already has a variable named 'total'"):
        metric.add_variable(name="total")
    with pytest.raises(ValueError, match="must be float32"):
        metric.add_variable(dtype="int32")
    assert len(metrics.Mean().variables) == 2


def test_thresholds_and_largest_outputs():
    t = np.float32([[1, 0, 0], [0, 1, 1], [0, 0, 1]])
    p = np.float32([[0.3, 0.6, 0.1], [0.2, 0.7, 0.4], [0.9, 0.1, 0.8]])
    several = [0.65, 0.35]
    for name, count in (("Precision", "said"), ("Recall", "true")):
        kind = getattr(metrics, name)
        wanted = []
        for least in several:
            said = p > least
            by = said.sum() if count == "said" else t.sum()
            wanted.append((said * t).sum() / by)
        np.testing.assert_allclose(kind(several)(t, p), wanted)
    np.testing.assert_array_equal(metrics.TruePositives(several)(t, p), [2, 3])
    said = np.float32([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # the largest two
    assert metrics.Precision(top_k=2)(t, p) == (said * t).sum() / 6
    assert metrics.Recall(top_k=1, class_id=1)(t, p) == 1.0
    assert metrics.Recall(0.5, top_k=2)(t, p) == (said * (p > 0.5) * t).sum() / 4
    with pytest.raises(ValueError, match=r"top_k must be at most .* 3, got 4"):
        metrics.Precision(top_k=4)(t, p)


def test_areas_of_labels():
    random = np.random.default_rng(0)
    t = np.float32(random.integers(0, 2, (30, 3)))
    p = np.float32(random.random((30, 3)))
    each = [metrics.AUC()(t[:, i], p[:, i]) for i in range(3)]
    assert metrics.AUC(multi_label=True)(t, p) == pytest.approx(np.mean(each))
    weighted = metrics.AUC(multi_label=True, num_labels=3, label_weights=[1, 2, 5])
    assert weighted(t, p) == pytest.approx(np.average(each, weights=[1, 2, 5]))
    repeated = metrics.AUC(label_weights=[1, 0, 0])
    assert repeated(t, p) == pytest.approx(each[0])
    with pytest.raises(ValueError, match="does not have 4 labels"):
        metrics.AUC(num_labels=4)(t, p)
    with pytest.raises(ValueError, match=r"needs outputs of shape \(None, labels\)"):
        metrics.AUC(multi_label=True)(t[None], p[None])


@pytest.mark.parametrize(
    "metric",
    [metrics.Precision([0.1, 0.2]), metrics.TrueNegatives([0, 1]), metrics.F1Score()],
)
def test_logs_hold_one_number(metric):
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    with pytest.raises(ValueError, match="a metric is one number in the logs: pass"):
        model.compile("sgd", "mse", metrics=[metric])


@given(st.integers(0, 99), st.sampled_from([-1, 1, (1, 2)]))
@settings(max_examples=20, deadline=None)
def test_correlations_are_numpys(seed, axis):
    random = np.random.default_rng(seed)
    t, p = random.normal(size=(2, 4, 3, 5))
    p += t
    found = metrics.pearson_correlation(t, p, axis=axis)
    agrees = metrics.concordance_correlation(t, p, axis=axis)
    rows = [np.moveaxis(x, axis, -1) if axis == 1 else x for x in (t, p)]
    width = 15 if isinstance(axis, tuple) else rows[0].shape[-1]
    for place, (a, b) in enumerate(
        zip(*(x.reshape(-1, width) for x in rows), strict=True)
    ):
        assert found.ravel()[place] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-4)
        both = 2 * np.cov(a, b, bias=True)[0, 1]
        by = a.var() + b.var() + (a.mean() - b.mean()) ** 2
        assert agrees.ravel()[place] == pytest.approx(both / by, abs=1e-4)
    assert metrics.PearsonCorrelation(axis=axis)(t, p) == pytest.approx(
        found.mean(), rel=1e-4
    )
    with pytest.raises(ValueError, match="names no axes"):
        metrics.pearson_correlation(t, p, axis=3)
