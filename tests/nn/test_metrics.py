"""Metrics against NumPy: of one batch, of several that are added, weighted."""

from __future__ import annotations

import numpy as np
import objectives as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import Traced
from sklearn.metrics import roc_auc_score

import memcfg as mc
from memcfg.nn.losses import Target
from memcfg.nn.metrics import get_metric

metrics = mc.nn.metrics


def measured(metric, *batches):
    """The result over batches, each of targets, outputs and perhaps weights."""
    found = [Traced(metric, *batch).sums() for batch in batches]
    assert all(len(each) == metric.sum_count for each in found)
    return metric.result([np.sum(each, 0) for each in zip(*found, strict=True)])


def averaged(values, weight=None):
    weights = np.ones(values.shape)
    if weight is not None:
        shape = weight.shape + (1,) * (values.ndim - weight.ndim)
        weights = np.broadcast_to(weight.reshape(shape), values.shape)
    return (values * weights).sum() / weights.sum()


def among(t, p, k):
    """Whether the value at the label is one of the k greatest."""
    value = np.take_along_axis(p, t[..., None], -1)
    return (p > value).sum(-1) < k


def reals(random, shape):
    return random.normal(size=shape), random.normal(size=shape)


def bits(random, shape):
    return random.integers(0, 2, shape).astype(float), random.random(shape)


def hot(random, shape):
    t, p = labels(random, shape)
    return oracle.one_hot(t, shape[-1]), p


def labels(random, shape):
    p = oracle.softmax(random.normal(size=shape))
    return random.integers(0, shape[-1], shape[:-1]).astype(np.int32), p


# A metric, what it reads, and the number of each sample in NumPy.
MEANS = {
    "mse": (metrics.MeanSquaredError, reals, lambda t, p: ((t - p) ** 2).mean(-1)),
    "mae": (metrics.MeanAbsoluteError, reals, lambda t, p: abs(t - p).mean(-1)),
    "log_cosh": (
        metrics.LogCoshError,
        reals,
        lambda t, p: np.log(np.cosh(t - p)).mean(-1),
    ),
    "cosine": (metrics.CosineSimilarity, reals, oracle.cosine),
    "hinge": (
        metrics.Hinge,
        bits,
        lambda t, p: np.maximum(1 - oracle.signed(t) * p, 0).mean(-1),
    ),
    "binary": (metrics.BinaryCrossentropy, bits, oracle.binary),
    "categorical": (metrics.CategoricalCrossentropy, hot, oracle.categorical),
    "sparse": (
        metrics.SparseCategoricalCrossentropy,
        labels,
        lambda t, p: oracle.categorical(oracle.one_hot(t, p.shape[-1]), p),
    ),
    "equal": (
        metrics.Accuracy,
        lambda random, shape: tuple(random.integers(0, 3, (2, *shape)).astype(float)),
        lambda t, p: (t == p).mean(-1),
    ),
    "binary accuracy": (
        lambda: metrics.BinaryAccuracy(threshold=0.3),
        bits,
        lambda t, p: (t == (p > 0.3)).mean(-1),
    ),
    "categorical accuracy": (
        metrics.CategoricalAccuracy,
        hot,
        lambda t, p: t.argmax(-1) == p.argmax(-1),
    ),
    "sparse accuracy": (
        metrics.SparseCategoricalAccuracy,
        labels,
        lambda t, p: t == p.argmax(-1),
    ),
    "top 2": (
        lambda: metrics.TopKCategoricalAccuracy(2),
        hot,
        lambda t, p: among(t.argmax(-1), p, 2),
    ),
    "sparse top 3": (
        lambda: metrics.SparseTopKCategoricalAccuracy(3),
        labels,
        lambda t, p: among(t, p, 3),
    ),
}


@given(
    name=st.sampled_from(sorted(MEANS)),
    rest=st.sampled_from([(4,), (3, 5), (2, 2, 6)]),
    weighted=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 999),
)
@settings(max_examples=150, deadline=None)
def test_means_are_numpys(name, rest, weighted, seed):
    make, draw, values = MEANS[name]
    random = np.random.default_rng(seed)
    batches, numbers, weights = [], [], []
    for size in (5, 2):
        t, p = draw(random, (size, *rest))
        each = np.asarray(values(t, p), float)
        weight = None
        if weighted is not None:
            weight = random.uniform(0.1, 2, each.shape[:weighted])
            weights.append(weight)
        batches.append((t, p, weight))
        numbers.append(each)
    weight = np.concatenate(weights) if weights else None
    expected = averaged(np.concatenate(numbers), weight)
    assert measured(make(), *batches) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_root_is_of_the_whole_mean():
    random = np.random.default_rng(0)
    batches = [reals(random, (n, 3)) for n in (4, 7)]
    t, p = (np.concatenate(each) for each in zip(*batches, strict=True))
    expected = np.sqrt(((t - p) ** 2).mean())
    assert measured(metrics.RootMeanSquaredError(), *batches) == pytest.approx(expected)


def counted(t, p, w, threshold):
    said = p > threshold
    return (
        (w * (said & (t == 1))).sum(),
        (w * (said & (t == 0))).sum(),
        (w * (~said & (t == 0))).sum(),
        (w * (~said & (t == 1))).sum(),
    )


@given(
    threshold=st.sampled_from([None, 0.0, 0.25, 0.8, 1.0]),
    weighted=st.booleans(),
    class_id=st.sampled_from([None, 0, 2]),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_precision_recall_and_counts(threshold, weighted, class_id, seed):
    random = np.random.default_rng(seed)
    t, p = bits(random, (9, 3))
    w = random.random(9) if weighted else None
    of = slice(None) if class_id is None else slice(class_id, class_id + 1)
    wide = (np.ones(9) if w is None else w)[:, None]
    at = 0.5 if threshold is None else threshold
    tp, fp, tn, fn = counted(t[:, of], p[:, of], wide, at)
    for make, expected in (
        (metrics.Precision, tp / (tp + fp) if tp + fp else 0),
        (metrics.Recall, tp / (tp + fn) if tp + fn else 0),
    ):
        found = measured(make(threshold, class_id=class_id), (t, p, w))
        assert found == pytest.approx(expected, abs=1e-9)
    if class_id is None:
        for make, expected in (
            (metrics.TruePositives, tp),
            (metrics.FalsePositives, fp),
            (metrics.TrueNegatives, tn),
            (metrics.FalseNegatives, fn),
        ):
            found = measured(make(threshold), (t, p, w))
            assert found == pytest.approx(expected, abs=1e-9)


def area(t, p, w=None):
    """The exact area under the ROC curve: how often a 1 is above a 0."""
    w = np.ones(t.shape) if w is None else w
    ones, zeros = t == 1, t == 0
    above = (p[ones][:, None] > p[zeros]) + 0.5 * (p[ones][:, None] == p[zeros])
    pairs = w[ones][:, None] * w[zeros]
    return (above * pairs).sum() / pairs.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_area_under_the_curve(weighted):
    """At thresholds between all outputs there are, it is the exact one."""
    random = np.random.default_rng(4)
    t = random.integers(0, 2, 60).astype(float)
    p = np.round(np.clip(random.normal(0.4 + 0.2 * t, 0.3), 0, 1), 2)
    w = random.random(60) if weighted else None
    expected = area(t, p, w)
    column = (t[:, None], p[:, None], w)
    exact = metrics.AUC(thresholds=np.arange(100)[:] / 100 + 0.005)
    assert measured(exact, column) == pytest.approx(expected, abs=1e-7)
    assert measured(metrics.AUC(), column) == pytest.approx(expected, abs=0.01)
    halves = [tuple(None if a is None else a[i::2] for a in column) for i in (0, 1)]
    assert measured(exact, *halves) == pytest.approx(expected, abs=1e-7)
    logits = np.log(np.clip(p, 1e-6, 1 - 1e-6) / (1 - np.clip(p, 1e-6, 1 - 1e-6)))
    found = measured(metrics.AUC(from_logits=True), (t[:, None], logits[:, None], w))
    assert found == pytest.approx(expected, abs=0.01)


def test_areas_of_other_curves():
    t = np.array([0, 0, 1, 1.0])[:, None]
    p = np.array([0, 0.5, 0.3, 0.9])[:, None]
    for curve, method, expected in (
        ("ROC", "interpolation", 0.75),
        ("ROC", "minoring", 0.5),
        ("ROC", "majoring", 1.0),
        ("PR", "minoring", 0.25),
        ("PR", "majoring", 1.0),
    ):
        found = measured(metrics.AUC(3, curve, method), (t, p))
        assert found == pytest.approx(expected), (curve, method)
    assert measured(metrics.AUC(curve="PR"), (t, t)) == pytest.approx(1, abs=0.01)
    assert measured(metrics.AUC(curve="PRGAIN"), (t, t)) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    "arguments", [{}, {"multi_label": True}, {"curve": "PR"}, {"thresholds": [0.3]}]
)
def test_auc_reads_integer_labels_of_many_classes(arguments):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 100)
    outputs, weights = rng.random((2, 100, 3), np.float32)
    weights, hot = weights[:, 0], np.eye(3, dtype=np.float32)[labels]
    sparse, column, dense = (metrics.AUC(**arguments) for _ in range(3))
    expected = dense(hot, outputs, weights)
    assert sparse(labels, outputs, weights) == expected
    assert column(labels[:, None], outputs, weights) == expected
    if arguments.get("multi_label"):
        exact = roc_auc_score(hot, outputs, sample_weight=weights)
        assert expected == pytest.approx(exact, abs=0.01)


def test_auc_is_a_metric_of_a_sparse_loss():
    rng = np.random.default_rng(1)
    x, y = rng.random((60, 4), np.float32), rng.integers(0, 3, 60)
    model = mc.nn.Sequential([mc.nn.Input((4,)), mc.nn.Dense(3, activation="softmax")])
    several = metrics.AUC(multi_label=True, name="several")
    found = []
    for loss, target in (
        ("sparse_categorical_crossentropy", y),
        ("categorical_crossentropy", np.eye(3, dtype=np.float32)[y]),
    ):
        model.compile("sgd", loss, metrics=["AUC", several])
        logs = model.evaluate(x, target, verbose=0, return_dict=True)
        found.append((logs["AUC"], logs["several"]))
    assert found[0] == found[1]
    outputs = model.predict(x, verbose=0)
    assert found[0][1] == pytest.approx(roc_auc_score(np.eye(3)[y], outputs), abs=0.01)


def test_rates_where_another_is_enough():
    t = np.array([0, 0, 0, 1, 1.0])[:, None]
    p = np.array([0, 0.3, 0.8, 0.3, 0.8])[:, None]
    for metric, expected in (
        (metrics.SensitivityAtSpecificity(0.5), 0.5),
        (metrics.SpecificityAtSensitivity(0.5), 2 / 3),
        (metrics.PrecisionAtRecall(0.5), 0.5),
        (metrics.RecallAtPrecision(0.5), 1.0),
    ):
        assert measured(metric, (t, p)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
@pytest.mark.parametrize("threshold", [None, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
def test_f_scores(average, threshold, weighted):
    random = np.random.default_rng(5)
    t, p = hot(random, (20, 3))
    w = random.random(20) if weighted else None
    wide = np.ones((20, 1)) if w is None else w[:, None]
    said = p > 0.4 if threshold else p == p.max(1, keepdims=True)
    right, all_said, true = (
        (wide * each).sum(0 if average != "micro" else None)
        for each in (said * t, said, t)
    )
    for beta, metric in (
        (1.0, metrics.F1Score(average, threshold)),
        (2.0, metrics.FBetaScore(average, 2.0, threshold)),
    ):
        score = (1 + beta**2) * right / (beta**2 * true + all_said)
        share = true / true.sum() if average == "weighted" else 1 / np.size(score)
        expected = (score * share).sum()
        assert measured(metric, (t, p, w)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_explained_variance(weighted):
    random = np.random.default_rng(6)
    t, p = reals(random, (30, 2))
    w = random.random(30) if weighted else np.ones(30)
    mean = (t * w[:, None]).sum(0) / w.sum()
    variance = (w[:, None] * (t - mean) ** 2).sum(0)
    score = 1 - (w[:, None] * (t - p) ** 2).sum(0) / variance
    batch = (t, p, w) if weighted else (t, p)
    assert measured(metrics.R2Score(), batch) == pytest.approx(score.mean())
    by = metrics.R2Score("variance_weighted_average")
    expected = (score * variance).sum() / variance.sum()
    assert measured(by, batch) == pytest.approx(expected)
    assert measured(metrics.R2Score(None), batch) == pytest.approx(score)
    adjusted = 1 - (1 - score.mean()) * (t.size - 1) / (t.size - 2 - 1)
    found = measured(metrics.R2Score(num_regressors=2), batch)
    assert found == pytest.approx(adjusted)
    with pytest.warns(UserWarning, match="too few to adjust"):
        found = measured(metrics.R2Score(num_regressors=t.size), batch)
    assert found == pytest.approx(score.mean())


@pytest.mark.parametrize(
    ("units", "target", "kind"),
    [
        (1, Target((1,), "float32", None), metrics.BinaryAccuracy),
        (3, Target((), "int32", 3), metrics.SparseCategoricalAccuracy),
        (3, Target((3,), "float32", None), metrics.CategoricalAccuracy),
    ],
)
def test_which_accuracy_a_name_means(units, target, kind):
    for name in ("accuracy", "acc"):
        found = get_metric(name, mc.nn.Input((units,)), target)
        assert type(found) is kind
        assert found.name == name


@pytest.mark.parametrize("name", sorted(metrics._METRICS))
def test_every_name_means_a_metric(name):
    plain = name.lower().replace("_", "")
    unions_ = plain.endswith("iou") and plain != "binaryiou"
    if "At" in name or "_at_" in name or unions_ or plain == "meanmetricwrapper":
        with pytest.raises(ValueError, match="needs arguments: pass a"):
            get_metric(name)
        return
    found = get_metric(name)
    assert found.name == name
    assert get_metric(found) is found
    assert repr(found).startswith(type(found).__name__)


def test_a_loss_is_a_metric_of_its_name():
    random = np.random.default_rng(7)
    t, p = reals(random, (4, 2))
    metric = get_metric(mc.nn.losses.Huber(0.2))
    assert metric.name == "huber_loss"
    assert measured(metric, (t, p)) == pytest.approx(oracle.huber(t, p, 0.2).mean())


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: get_metric("exactness"), ValueError, "unknown metric 'exactness'; kn"),
        (lambda: get_metric(3), TypeError, "a metric must be a name such as"),
        (lambda: metrics.Precision(2), ValueError, r"must be in \[0, 1\]"),
        (lambda: metrics.AUC(curve="roc_"), ValueError, "curve must be 'ROC', 'PR' or"),
        (
            lambda: metrics.AUC(summation_method="x"),
            ValueError,
            "summation_method must be",
        ),
        (lambda: metrics.AUC(1), ValueError, "must be above 1"),
        (lambda: metrics.F1Score("mean"), ValueError, "average must be 'micro'"),
        (lambda: metrics.FBetaScore(beta=0), ValueError, "beta must be positive"),
        (lambda: metrics.R2Score("mean"), ValueError, "class_aggregation must be"),
        (lambda: metrics.R2Score(num_regressors=-2), ValueError, "zero or more"),
        (
            lambda: metrics.SparseTopKCategoricalAccuracy(from_sorted_ids=True),
            ValueError,
            "from_sorted_ids=True is not supported",
        ),
        (
            lambda: metrics.Accuracy(dtype="float16"),
            ValueError,
            "dtype must be 'float32'",
        ),
    ],
)
def test_wrong_arguments(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_a_class_is_the_metric_that_it_makes_without_arguments():
    model = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(3)])
    model.compile("sgd", "mse", metrics=[metrics.MeanAbsoluteError])
    x, y = np.ones((4, 2), "f4"), np.zeros((4, 3), "f4")
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    wanted = np.abs(model.predict(x, verbose=0)).mean()
    assert found["mean_absolute_error"] == pytest.approx(wanted, rel=1e-5)


def test_integers_are_numbers_and_axes_of_weights_are_broadcast():
    """As in Keras: of a call of one's own, not of fit."""
    y, p, w = np.array([[1, 0], [3, 2]]), np.array([[0, 2], [3, 5]]), [[2], [1]]
    error = (y - p) ** 2
    mean = metrics.MeanSquaredError()
    mean.update_state(y, p, w)
    assert mean.result() == pytest.approx((error * w).sum() / (2 * np.sum(w)))
    weights = np.array([[3, 1]])
    mean.reset_state()
    mean.update_state(error, error * 0, weights)
    expected = (error**2 * weights).sum() / (2 * weights.sum())
    assert mean.result() == pytest.approx(expected)
    assert metrics.Sum()([[1, 3], [5, 7]], [[1, 0]]) == 6
    found = metrics.TrueNegatives()([[0, 1], [0, 0]], [[0, 1], [1, 0]], [[4, 2]])
    assert found == 4 + 2


def test_variables_have_the_names_of_keras():
    mean = metrics.Mean()
    assert [each.name for each in mean.variables] == ["total", "count"]
    assert float(mean.total) == 0
    mean.update_state([1, 3, 5], [1, 1, 0])
    assert [float(each) for each in mean.variables] == [4, 2]
    assert float(mean.count) == 2
    y, p = [[1], [1], [0], [0]], [[0.9], [0.2], [0.6], [0.3]]
    rate = metrics.Precision(thresholds=[0.5, 0.1])
    rate.update_state(y, p)
    assert rate.true_positives.numpy().tolist() == [1, 2]
    assert rate.false_positives.numpy().tolist() == [1, 2]
    auc = metrics.AUC(thresholds=[0.5])
    auc.update_state(y, p)
    assert auc.thresholds == [0, 0.5, 1]
    found = {each.name: each.numpy().tolist() for each in auc.variables}
    assert found == {
        "true_positives": [2, 1, 0],
        "false_positives": [2, 1, 0],
        "true_negatives": [0, 1, 2],
        "false_negatives": [0, 1, 2],
    }
    with pytest.raises(AttributeError, match="'Mean' object has no attribute 'accum"):
        _ = mean.accumulator


def test_a_score_by_unit_reads_rows_of_units():
    model = mc.nn.Sequential([mc.nn.Input((4, 3)), mc.nn.Dense(2)])
    model.compile("sgd", "mse", metrics=[metrics.R2Score()])
    with pytest.raises(ValueError, match=r"shape \(None, units\), got \(3, 4, 2\)"):
        model.plan(3)


def test_metrics_and_losses_that_read_other_targets():
    random = np.random.default_rng(8)
    t, p = labels(random, (4, 3))
    for metric in (metrics.MeanSquaredError(), metrics.Precision(), metrics.R2Score()):
        with pytest.raises(ValueError, match="needs targets of the shape of the outp"):
            measured(metric, (t, p))
    with pytest.raises(ValueError, match="needs labels, but the loss reads float32"):
        measured(metrics.SparseCategoricalAccuracy(), (p, p))
    with pytest.raises(ValueError, match="number of outputs, 3, got 3"):
        measured(metrics.Precision(class_id=3), (p, p))


def test_steps_that_are_masked_count_in_no_metric():
    random = np.random.default_rng(9)
    x = random.integers(0, 3, (8, 5))
    y = random.integers(0, 4, (8, 5))
    model = mc.nn.Sequential(
        [
            mc.nn.Input((5,), dtype="int32"),
            mc.nn.layers.Embedding(3, 4, mask_zero=True),
            mc.nn.Dense(4, activation="softmax"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    model.compile("sgd", loss, metrics=["accuracy", loss])
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    p = model.predict(x, verbose=0)
    model.close()
    keep = x != 0
    right = (p.argmax(-1) == y)[keep].mean()
    each = oracle.categorical(oracle.one_hot(y, 4), p.astype(float))[keep].mean()
    assert found["accuracy"] == pytest.approx(right, rel=1e-6)
    assert found["loss"] == pytest.approx(each, rel=1e-5)
    assert found[loss] == pytest.approx(each, rel=1e-5)


@pytest.mark.parametrize(
    "kind", [metrics.SparseTopKCategoricalAccuracy, metrics.TopKCategoricalAccuracy]
)
def test_more_than_there_are_classes_are_not_counted(kind):
    output = mc.nn.Input((3,))
    assert kind(3).target(output) is None
    with pytest.raises(ValueError, match=r"of 3 classes.*smaller k"):
        kind().target(output)


def test_directions():
    assert metrics.Metric("float32", "mine").name == "mine"
    assert metrics.Metric().direction is None
    assert metrics.KLDivergence().direction == "down"
    assert get_metric(lambda t, p: t - p).direction is None

    class Mine(metrics.Metric):
        _direction = "up"

    assert Mine().direction == "up"


# -- in loops of one's own ----------------------------------------------------------


AT_ONCE = {
    "labels": [
        "SparseCategoricalAccuracy",
        "SparseCategoricalCrossentropy",
        "SparseTopKCategoricalAccuracy",
    ],
    "classes": [
        "CategoricalAccuracy",
        "CategoricalCrossentropy",
        "KLDivergence",
        "TopKCategoricalAccuracy",
    ],
    "binary": ["AUC", "BinaryAccuracy", "Precision", "Recall", "TruePositives"],
    "numbers": ["CosineSimilarity", "MeanSquaredError", "R2Score", "MeanAbsoluteError"],
}
LOSSES = {
    "labels": "sparse_categorical_crossentropy",
    "classes": "categorical_crossentropy",
    "binary": "binary_crossentropy",
    "numbers": "mse",
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in AT_ONCE for name in AT_ONCE[kind]],
)
def test_batches_at_once_give_what_evaluate_does(kind, name, weighted):
    random = np.random.default_rng(1)
    x = random.standard_normal((50, 6)).astype(np.float32)
    labels = random.integers(0, 7, 50)
    units = {"labels": 7, "classes": 7, "binary": 1, "numbers": 7}[kind]
    y = {
        "labels": labels,
        "classes": np.eye(7, dtype=np.float32)[labels],
        "binary": (labels > 3).astype(np.float32)[:, None],
        "numbers": random.standard_normal((50, 7)).astype(np.float32),
    }[kind]
    activation = {"binary": "sigmoid", "numbers": None}.get(kind, "softmax")
    model = mc.nn.Sequential([mc.nn.Input((6,)), mc.nn.Dense(units, activation)])
    metric = getattr(metrics, name)()
    key = "weighted_metrics" if weighted else "metrics"
    model.compile("sgd", LOSSES[kind], **{key: [metric]})
    weight = random.uniform(0.5, 2, 50).astype(np.float32)
    given = {"sample_weight": weight} if weighted else {}
    _, expected = model.evaluate(x, y, batch_size=20, verbose=0, **given)
    assert metric.result() == 0  # a model has sums of its own
    for begin in (0, 20, 40):
        part = slice(begin, begin + 20)
        more = {"sample_weight": weight[part]} if weighted else {}
        last = metric(y[part], model.predict_on_batch(x[part]), **more)
    # A model computes some metrics from the logits of its last layer.
    assert metric.result() == last == pytest.approx(expected, rel=1e-5)
    metric.reset_state()
    assert metric.result() == 0


def test_a_metric_of_ones_own_adds_batches():
    class Largest(mc.nn.Metric):
        sum_count = 1

        def trace(self, builder, y_true, y_pred, sample_weight):
            a = {"axes": (0, 1), "keepdims": False}
            return builder.apply("reduce_max", (y_pred,), a)

        def result(self, sums):
            return float(sums[0])

    largest = Largest()
    largest.update_state(np.zeros((2, 2)), [[1.0, 5.0], [2.0, 3.0]])
    assert largest(np.zeros((1, 2)), [[7.0, 5.0]]) == 12


def test_what_a_metric_cannot_add_is_said():
    accuracy = metrics.SparseCategoricalAccuracy()
    with pytest.raises(ValueError, match="needs labels"):
        accuracy.update_state(np.zeros((2, 3)), np.zeros((2, 3)))
    labels, outputs = mc.nn.Input((1,)), mc.nn.Input((3,))
    with pytest.raises(TypeError, match="takes arrays, or tensors of a function"):
        accuracy.update_state(labels, outputs)
    assert accuracy.result() == 0


def unions(matrix, chosen):
    """The mean of the intersections over unions of classes that occur."""
    found = []
    for k in chosen:
        either = matrix[k].sum() + matrix[:, k].sum() - matrix[k, k]
        found += [matrix[k, k] / (either + 1e-7)] if either else []
    return np.mean(found) if found else 0.0


@given(
    rest=st.sampled_from([(), (4,), (2, 3)]),
    ignore=st.sampled_from([None, 1, -1]),
    weighted=st.booleans(),
    hot=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_intersections_over_unions(rest, ignore, weighted, hot, seed):
    """Labels from -1 to 3, of which 0 to 2 are classes."""
    random = np.random.default_rng(seed)
    chosen, matrix, batches = (0, 2), np.zeros((3, 3)), []
    for size in (6, 3):
        shape = (size, *rest)
        low, high = (0, 3) if any(hot) else (-1, 4)
        t = random.integers(low, high, shape).astype(np.int32)
        p = random.integers(low, high, shape)
        w = random.uniform(0.1, 2, size) if weighted else None
        each = np.broadcast_to(
            np.ones(shape) if w is None else w.reshape(-1, *(1 for _ in rest)), shape
        )
        for place in np.ndindex(*shape):
            if t[place] != ignore and {t[place], p[place]} <= {0, 1, 2}:
                matrix[t[place], p[place]] += each[place]
        y = oracle.one_hot(t, 3) if hot[0] else t
        out = oracle.one_hot(p, 3) + random.uniform(0, 0.5, (*shape, 3))
        batches.append((y, out if hot[1] else p.astype(float), w))
    how = {"sparse_y_true": not hot[0], "sparse_y_pred": not hot[1]}
    how["ignore_class"] = ignore
    for metric, classes in (
        (metrics.IoU(3, chosen, **how), chosen),
        (metrics.MeanIoU(3, **how), (0, 1, 2)),
    ):
        wanted = pytest.approx(unions(matrix, classes), rel=1e-6)
        assert measured(metric, *batches) == wanted


def test_unions_of_other_names():
    t, p = np.int32([0, 1, 1, 0]), np.array([0.2, 0.6, 0.4, 0.5])
    binary = metrics.BinaryIoU(threshold=0.5)
    binary.update_state(t, p)
    assert binary.result() == pytest.approx((1 / 3 + 1 / 3) / 2, rel=1e-5)
    assert metrics.BinaryIoU([1])(t, p) == pytest.approx(1 / 3, rel=1e-5)
    scores = np.eye(3)[[0, 1, 1, 2]]
    labels = np.eye(3)[[0, 1, 2, 2]]
    one = metrics.OneHotIoU(3, [1])(labels, scores)
    assert one == pytest.approx(1 / 2, rel=1e-5)
    every = metrics.OneHotMeanIoU(3)(labels, scores)
    assert every == pytest.approx((1 + 1 / 2 + 1 / 2) / 3, rel=1e-5)
    for call, message in (
        (lambda: metrics.IoU(2, [2]), "must be below num_classes=2"),
        (lambda: metrics.MeanIoU(2, axis=1), "axis must be -1"),
        (lambda: metrics.MeanIoU(3)(labels, scores[:, 0]), "a target for each output"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_unions_in_a_models_logs():
    model = mc.nn.Sequential([mc.nn.Input((5, 4)), mc.nn.Dense(3)])
    loss = mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True)
    union = metrics.MeanIoU(3, sparse_y_pred=False, name="union")
    model.compile("sgd", loss, metrics=[union])
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 5, 4)), random.integers(0, 3, (20, 5))
    logs = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    said = model.predict(x, verbose=0).argmax(-1)
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (y, said), 1)
    assert logs["union"] == pytest.approx(unions(matrix, range(3)), rel=1e-5)


def test_metrics_of_labels_beside_a_loss_of_ones_own():
    """Its targets are numbers of any shape, of which Keras makes labels."""
    model = mc.nn.Sequential([mc.nn.Input((5, 4)), mc.nn.Dense(3)])

    def error(y_true, y_pred):
        return mc.nn.ops.mean(mc.nn.ops.square(y_pred - y_true), axis=-1)

    union = metrics.MeanIoU(3, sparse_y_pred=False, name="union")
    model.compile("sgd", error, metrics=[union, "sparse_categorical_accuracy"])
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 5, 4)), random.integers(0, 3, (20, 5, 1))
    logs = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    said, matrix = model.predict(x, verbose=0).argmax(-1), np.zeros((3, 3))
    np.add.at(matrix, (y[..., 0], said), 1)
    assert logs["union"] == pytest.approx(unions(matrix, range(3)), rel=1e-5)
    right = (y[..., 0] == said).mean()
    assert logs["sparse_categorical_accuracy"] == pytest.approx(right, rel=1e-5)


def test_means_and_sums_of_values():
    mean, total = metrics.Mean(), metrics.Sum()
    values, weights = np.float32([[1, 3], [5, 9]]), [1.0, 0.5]
    assert mean([1, 3, 5, 7]) == 4
    assert total([1, 3, 5, 7], sample_weight=[1, 1, 0, 0]) == 4
    mean.reset_state()
    total.reset_state()
    assert mean.result() == total.result() == 0
    assert mean(values, weights) == pytest.approx((2 + 7 / 2) / 1.5)
    assert total(values, weights) == pytest.approx(4 + 14 / 2)
    assert mean(3.0) == pytest.approx((2 + 7 / 2 + 3) / 2.5)
    with pytest.raises(ValueError, match="sample_weight must have the shape"):
        mean(values, [1, 2, 3])
    model = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(2)])
    with pytest.raises(TypeError, match="Mean is a metric of values"):
        model.compile("sgd", "mse", metrics=[mean])


def far(y_true, y_pred, power=1):
    return abs(y_true - y_pred) ** power


def test_the_mean_of_a_function(tmp_path):
    model = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(2)])
    cubed = metrics.MeanMetricWrapper(far, name="cubed", power=3)
    model.compile("sgd", "mse", metrics=[metrics.MeanMetricWrapper(far), cubed])
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 7, 2))
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    apart = abs(model.predict(x, verbose=0) - y)
    assert logs["far"] == pytest.approx(apart.mean(), rel=1e-5)
    assert logs["cubed"] == pytest.approx((apart**3).mean(), rel=1e-5)
    with pytest.raises(TypeError, match="cannot be saved"):
        model.save(tmp_path / "model.memcfg")
    model.compile("sgd", "mse", metrics=[metrics.MeanMetricWrapper(far)])
    model.save(tmp_path / "model.memcfg")
    loaded = mc.nn.models.load_model(tmp_path / "model.memcfg", {"far": far})
    again = loaded.evaluate(x, y, verbose=0, return_dict=True)
    assert again["far"] == pytest.approx(logs["far"])
