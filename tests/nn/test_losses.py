"""Losses against NumPy: values, gradients, weights, reductions, extreme outputs."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import objectives as oracle
import pytest
from alignments import loss_of
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, SHAPES, bit_logits, hot, label_logits, labels, logits
from objectives import Traced

import memcfg as mc
from memcfg.graph import Builder
from memcfg.nn.losses import get_loss

losses = mc.nn.losses
WEIGHTS = [None, "sample", "step"]


def weights_of(kind, values, random):
    if kind is None:
        return None
    return random.uniform(0, 2, values.shape if kind == "step" else values.shape[:1])


def reduced(values, weight, reduction):
    weights = np.ones(values.shape)
    if weight is not None:
        shape = weight.shape + (1,) * (values.ndim - weight.ndim)
        weights = np.broadcast_to(weight.reshape(shape), values.shape)
    total = (values * weights).sum()
    if reduction == "sum":
        return total
    if reduction == "mean_with_sample_weight":
        return total / weights.sum()
    return total / values.size


@given(
    name=st.sampled_from(sorted(CASES)),
    shape=SHAPES,
    seed=st.integers(0, 999),
    kind=st.sampled_from(WEIGHTS),
    reduction=st.sampled_from(
        ["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight"]
    ),
)
@settings(max_examples=300, deadline=None)
def test_values_and_gradients_are_numpys(name, shape, seed, kind, reduction):
    loss, draw, values = CASES[name]
    random = np.random.default_rng(seed)
    t, p = draw(random, shape)
    each = values(t, p)
    weight = weights_of(kind, each, random)
    loss = copy.copy(loss)
    object.__setattr__(loss, "reduction", reduction)
    traced = Traced(loss, t, p, weight)
    found, slopes = traced.loss()
    assert found == pytest.approx(reduced(each, weight, reduction), rel=2e-6, abs=1e-9)
    direction = random.normal(size=p.shape)
    expected = traced.slope(direction)
    assert (slopes * direction).sum() == pytest.approx(expected, rel=2e-4, abs=2e-6)


@pytest.mark.parametrize(
    ("loss", "through", "draw", "kind"),
    [
        (losses.BinaryCrossentropy(), "sigmoid", bit_logits, "binary of logits"),
        (losses.CategoricalCrossentropy(), "softmax", logits, "categorical of logits"),
        (losses.SparseCategoricalCrossentropy(), "softmax", label_logits, None),
    ],
)
def test_a_softmax_or_sigmoid_at_the_end_is_part_of_the_loss(loss, through, draw, kind):
    t, p = draw(np.random.default_rng(0), (4, 3))
    fused = Traced(loss, t, p, through=through)
    other = copy.copy(loss)
    object.__setattr__(other, "from_logits", True)
    plain = Traced(other, t, p)
    readers = {op.type for op in fused.builder.ops if through in op.inputs}
    assert not readers
    for one, two in zip(fused.loss(), plain.loss(), strict=True):
        np.testing.assert_array_equal(one, two)
    # probabilities that are all but 0 and 1 are told apart, which clipping does not
    far, _ = Traced(loss, t, 200 * p, through=through).loss()
    assert far > 17


def test_logits_that_are_taken_for_probabilities_are_refused():
    for loss in (
        losses.BinaryCrossentropy(),
        losses.CategoricalCrossentropy(),
        losses.BinaryFocalCrossentropy(),
    ):
        builder = Builder("linear")
        x = builder.tensor("x", (2, 3), role="input")
        w = builder.tensor("w", (3, 3), role="parameter")
        (y,) = builder.apply("dense", (x, w))
        with pytest.raises(
            ValueError, match=r"pass from_logits=True, or .*activation="
        ):
            loss.trace(builder, x, y, None)


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("ignored", [-1, 1, 255])
@pytest.mark.parametrize("weighted", [None, "sample", "step"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "mean_with_sample_weight"])
def test_classes_that_are_ignored(from_logits, ignored, weighted, reduction):
    random = np.random.default_rng(3)
    t, p = labels(random, (6, 4, 3))
    t[random.random(t.shape) < 0.4] = ignored
    if from_logits:
        p = np.log(p)
    loss = losses.SparseCategoricalCrossentropy(
        from_logits, ignore_class=ignored, reduction=reduction
    )
    weight = weights_of(weighted, t, random)
    rows = oracle.categorical(hot(t, p), oracle.softmax(p) if from_logits else p)
    keep = t != ignored
    wide = np.ones(t.shape) if weight is None else weight
    wide = np.broadcast_to(wide.reshape(wide.shape + (1,) * (2 - wide.ndim)), t.shape)
    kept = np.where(keep, rows * wide, 0).sum()
    count = {"mean": keep.sum(), "sum": 1}.get(reduction, (keep * wide).sum())
    traced = Traced(loss, t, p, weight)
    found, slopes = traced.loss()
    assert found == pytest.approx(kept / count)
    assert not slopes[~keep].any()
    direction = random.normal(size=p.shape)
    assert (slopes * direction).sum() == pytest.approx(
        traced.slope(direction), rel=1e-5
    )
    nobody = np.full(t.shape, ignored, np.int32)
    assert Traced(loss, nobody, p).loss()[0] == 0
    metric = mc.nn.metrics.SparseCategoricalCrossentropy(
        None, None, from_logits, ignored
    )
    total, whole = Traced(metric, t, p, weight).sums()
    assert total / whole == pytest.approx(kept / (keep * wide).sum())


@pytest.mark.parametrize("axis", [None, (1, 2), -1])
def test_overlaps(axis):
    random = np.random.default_rng(1)
    t, p = random.integers(0, 2, (3, 4, 5)).astype(float), random.random((3, 4, 5))
    for loss, alpha, beta in (
        (losses.Dice(axis=axis), 0.5, 0.5),
        (losses.Tversky(0.3, 0.6, axis=axis), 0.3, 0.6),
    ):
        hits = (t * p).sum(axis)
        missed, false = (t * (1 - p)).sum(axis), ((1 - t) * p).sum(axis)
        expected = np.mean(1 - hits / (hits + alpha * missed + beta * false))
        traced = Traced(loss, t, p)
        found, slopes = traced.loss()
        assert found == pytest.approx(expected, rel=1e-6)
        direction = random.normal(size=p.shape)
        assert (slopes * direction).sum() == pytest.approx(traced.slope(direction))
    if axis is None:
        with pytest.raises(ValueError, match="cannot use sample weights: pass axis"):
            Traced(losses.Dice(), t, p, np.ones(3))


def test_cosines_along_another_axis():
    random = np.random.default_rng(2)
    t, p = random.normal(size=(2, 3, 4, 5))
    found, _ = Traced(losses.CosineSimilarity(axis=1), t, p).loss()
    assert found == pytest.approx(-oracle.cosine(t, p, 1).mean())
    zero, slopes = Traced(losses.CosineSimilarity(), t, 0 * p).loss()
    assert zero == 0
    assert np.isfinite(slopes).all()
    with pytest.raises(ValueError, match="axis must not be 0, the batch"):
        losses.CosineSimilarity(axis=0)


EXTREMES = np.array([[0.0, 1.0], [1.0, 0.0], [1e-30, 1.0], [0.5, 0.5]])


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(CASES))
def test_extreme_outputs_have_finite_losses_and_gradients(name, real):
    loss, draw, _ = CASES[name]
    for scale in (1, 1e4) if "logits" in name else (1,):
        p = scale * (EXTREMES - 0.5 * (scale > 1))
        t = np.eye(2)[[0, 1, 1, 0]]
        if draw in (labels, label_logits):
            t = t.argmax(-1).astype(np.int32)
        found, slopes = Traced(loss, t, p).loss(real)
        assert np.isfinite(found)
        assert np.isfinite(slopes).all()


FAR = np.array([-1e4, -100, -20, -3, 0, 3, 20, 100, 1e4])
FOCAL = [  # gamma, label smoothing
    *((0.0, 0.0), (0.5, 0.0), (2.0, 0.0), (5.0, 0.0)),
    *((0.0, 0.1), (0.5, 0.1), (2.0, 0.1)),
]
FORMS = ("logits", "activation")  # of what a loss reads


def far_loss(loss, form, activation, t, x):
    """The loss and its gradient by logits, in float32."""
    through = activation if form == "activation" else None
    object.__setattr__(loss, "from_logits", through is None)
    return Traced(loss, t, x, through=through).loss(np.float32)


def sigmoid_of(x):
    return np.exp(-np.logaddexp(0, -x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(("gamma", "smoothing"), FOCAL)
def test_binary_focal_losses_of_far_logits(gamma, smoothing, balanced, form):
    """Beside the formula in long double, whose exponential of 1e4 is finite."""
    t, logits = (each.reshape(-1, 1) for each in np.meshgrid([0.0, 1.0], FAR))
    x = logits.astype(np.longdouble)
    soft = oracle.smoothed(t, smoothing)
    right, wrong = sigmoid_of(x), sigmoid_of(-x)
    miss = soft * wrong + (1 - soft) * right
    entropy = np.logaddexp(0, x) - soft * x
    weight = soft * 0.3 + (1 - soft) * 0.7 if balanced else 1
    values = weight * miss**gamma * entropy
    slopes = right - soft + gamma * (1 - 2 * soft) * right * wrong / miss * entropy
    slopes *= miss**gamma
    loss = losses.BinaryFocalCrossentropy(
        balanced, 0.3, gamma, label_smoothing=smoothing
    )
    found, gradient = far_loss(loss, form, "sigmoid", t, logits)
    assert found == pytest.approx(float(values.mean()), rel=1e-5)
    expected = (weight * slopes).astype(float) / len(t)
    np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=1e-8)
    certain = (abs(logits) > 3) & ((logits > 0) != (t == 1))  # and wrong
    assert (gradient * (1 - 2 * t))[certain].min() > 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("gamma", "smoothing"), FOCAL)
def test_categorical_focal_losses_of_far_logits(gamma, smoothing, form):
    rows = [(x, 0, -x / 2) for x in FAR] + [(x, x, 0) for x in FAR]
    logits = np.repeat(np.array(rows), 3, axis=0)
    t = np.tile(np.eye(3), (len(rows), 1))
    x = logits.astype(np.longdouble)
    log_p = x - np.logaddexp.reduce(x, axis=-1, keepdims=True)
    p, soft = np.exp(log_p), oracle.smoothed(t, smoothing, 3)
    miss = np.maximum(-np.expm1(log_p), 1e-30)
    values = -0.3 * (miss**gamma * soft * log_p).sum(-1)
    by_log = -0.3 * soft * (miss**gamma - gamma * miss ** (gamma - 1) * p * log_p)
    slopes = by_log - p * by_log.sum(-1, keepdims=True)
    loss = losses.CategoricalFocalCrossentropy(0.3, gamma, label_smoothing=smoothing)
    found, gradient = far_loss(loss, form, "softmax", t, logits)
    assert found == pytest.approx(float(values.mean()), rel=1e-5)
    expected = slopes.astype(float) / len(rows) / 3
    np.testing.assert_allclose(gradient, expected, rtol=5e-4, atol=2e-8)
    certain = (t * p).sum(-1) < 1e-6  # and wrong
    assert certain.sum() > 10
    assert (gradient * t).sum(-1)[certain].max() < -0.01 / len(t)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_divergence_of_far_logits(activation):
    rows = np.array([(x, 0, -x / 2) for x in FAR])
    t = np.array([[0.2, 0.8, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])[np.arange(9) % 3]
    x = rows.astype(np.longdouble)
    log_p = -np.logaddexp(0, -x)
    if activation == "softmax":
        log_p = x - np.logaddexp.reduce(x, axis=-1, keepdims=True)
    values = (t * np.log(np.where(t, t, 1)) - t * log_p).sum(-1)
    slopes = np.exp(log_p) * t.sum(-1, keepdims=True) - t
    if activation == "sigmoid":
        slopes = -t * sigmoid_of(-x)
    found, gradient = Traced(losses.KLDivergence(), t, rows, through=activation).loss(
        np.float32
    )
    assert found == pytest.approx(float(values.mean()), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes.astype(float) / 9, 2e-5, 1e-8)


def test_losses_of_far_outputs_point_to_the_target():
    p, t = FAR.reshape(-1, 1), np.full((9, 1), 1.5)
    for loss in (
        losses.MeanSquaredError(),
        losses.MeanAbsoluteError(),
        losses.MeanAbsolutePercentageError(),
        losses.Huber(),
        losses.LogCosh(),
    ):
        found, slopes = Traced(loss, t, p).loss(np.float32)
        assert np.isfinite(found)
        assert (slopes * (p - t) > 0).all()
    for loss in (losses.Hinge(), losses.SquaredHinge()):
        for sign in (1.0, -1.0):
            found, slopes = Traced(loss, np.full((9, 1), sign), p).loss(np.float32)
            assert np.isfinite(found)
            np.testing.assert_array_equal(np.sign(slopes), -sign * (sign * p < 1))
    ends = np.array([[0.0, 1.0]] * 9 + [[1.0, 0.0]] * 9)
    rows = np.tile(np.hstack([p, -p]), (2, 1))
    for loss, activation in (
        (losses.BinaryCrossentropy(), "sigmoid"),
        (losses.CategoricalCrossentropy(), "softmax"),
    ):
        for form in FORMS:
            found, slopes = far_loss(copy.copy(loss), form, activation, ends, rows)
            assert np.isfinite(found)
            wrong = (rows[:, 0] > rows[:, 1]) != (ends[:, 0] > 0.5)
            assert (slopes * (1 - 2 * ends))[wrong].min() > 1e-3
            assert (slopes * (1 - 2 * ends)).min() >= 0
    labels, rows = np.int32(np.arange(9) % 2), np.hstack([p, -p])
    for form in FORMS:
        loss = losses.SparseCategoricalCrossentropy()
        found, slopes = far_loss(loss, form, "softmax", labels, rows)
        assert np.isfinite(found)
        assert (slopes[np.arange(9), labels] <= 0).all()


METRICS = [
    *("MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError"),
    *("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "LogCoshError"),
    *("CosineSimilarity", "Hinge", "SquaredHinge", "CategoricalHinge"),
    *("BinaryAccuracy", "CategoricalAccuracy", "AUC"),
    *("BinaryCrossentropy", "CategoricalCrossentropy", "KLDivergence", "Precision"),
    "R2Score",
]


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_far_outputs_are_finite(name):
    metric = getattr(mc.nn.metrics, name)
    metric = metric(from_logits=True) if "Cross" in name else metric()
    far = FAR.astype(np.float32)
    x, y = (
        np.stack([far, -far, far / 2], 1),
        np.eye(3, dtype=np.float32)[FAR.size * [1]],
    )
    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Activation("linear")])
    model.compile("sgd", "mse", metrics=[metric])
    assert np.isfinite(model.evaluate(x, y, batch_size=9, verbose=0)).all()


@pytest.mark.parametrize("end", [None, "sigmoid", "softmax"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_model_leaves_a_wrong_answer_of_a_far_logit(end, policy):
    """Trained by the focal loss, a weight moves however far its answer is."""
    focal = losses.CategoricalFocalCrossentropy if end == "softmax" else None
    loss = (focal or losses.BinaryFocalCrossentropy)(from_logits=end is None)
    for far in (20, 100, 1e4):
        x = mc.nn.Input((2,))
        model = mc.nn.Model(x, mc.nn.Dense(2, end, use_bias=False, dtype=policy)(x))
        model.compile(mc.nn.SGD(1.0), loss)
        kernel = np.float32([[far, -far], [0, 0]])
        model.set_weights([kernel])
        value = model.train_on_batch(np.float32([[1, 0]]), np.float32([[0, 1]]))
        assert np.isfinite(value)
        step = model.get_weights()[0][0] - kernel[0]
        assert step[0] < -0.05
        assert step[1] > 0.05
        model.close()


@pytest.mark.parametrize("name", sorted(losses._LOSSES))
def test_every_name_means_a_loss(name):
    loss = get_loss(name)
    assert get_loss(type(loss)) is not loss
    assert get_loss(loss) is loss
    assert repr(loss).startswith(type(loss).__name__)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda: get_loss("mean_square"),
            ValueError,
            "unknown loss 'mean_square': did you mean",
        ),
        (lambda: get_loss(3), TypeError, "a loss must be a name such as 'mse'"),
        (lambda: get_loss(["mse"]), TypeError, "or a function of y_true and y_pred"),
        (lambda: losses.Huber(reduction="all"), ValueError, "reduction must be one of"),
        (lambda: losses.Huber(-1), ValueError, "delta must be zero or more"),
        (lambda: losses.Huber(dtype="float64"), ValueError, "dtype must be 'float32'"),
        (
            lambda: losses.BinaryCrossentropy(label_smoothing=2),
            ValueError,
            r"label_smoothing must be in \[0, 1\]",
        ),
        (
            lambda: losses.CategoricalCrossentropy(axis=1),
            ValueError,
            "axis of the classes",
        ),
    ],
)
def test_wrong_arguments(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_what_targets_are():
    x = mc.nn.Input((6, 3))
    sparse = losses.SparseCategoricalCrossentropy
    assert sparse().target(x) == ((6,), "int32", 3, None)
    assert sparse(ignore_class=2).target(x) == ((6,), "int32", 3, None)
    assert sparse(ignore_class=-1).target(x) == ((6,), "int32", None, None)
    assert losses.Huber().target(x) == ((6, 3), "float32", None, None)
    assert losses.CTC().target(x) == ((6,), "int32", 3, 0)
    assert losses.Circle().target(mc.nn.Input((6,))) == ((), "int32", None, None)
    for loss, shape, words in (
        (losses.CTC(), (6,), "an output of shape .batch, steps, classes."),
        (losses.Circle(), (6, 3), "an output of shape .batch, size."),
        (losses.CategoricalGeneralizedCrossEntropy(), (6, 1), "two or more classes"),
    ):
        with pytest.raises(ValueError, match=words):
            loss.target(mc.nn.Input(shape))
    for loss in (sparse(), losses.CategoricalCrossentropy()):
        with pytest.raises(ValueError, match="use BinaryCrossentropy, or one unit"):
            loss.target(mc.nn.Input((1,)))


def test_a_generalized_cross_entropy_of_a_softmax_is_that_of_its_logits():
    t, x = label_logits(np.random.default_rng(0), (4, 3))
    loss = losses.CategoricalGeneralizedCrossEntropy(0.6)
    found, slopes = Traced(loss, t, x, through="softmax").loss()
    wanted, _ = Traced(loss, t, oracle.softmax(x)).loss()
    assert found == pytest.approx(wanted, rel=1e-9)
    far = np.array([[-1e4, 1e4], [1e4, -1e4]])
    _, slopes = Traced(loss, np.int32([0, 0]), far, through="softmax").loss(np.float32)
    np.testing.assert_array_equal(slopes, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"q must be in \(0, 1\)"):
        losses.CategoricalGeneralizedCrossEntropy(1.0)


def circles(t, p, gamma, margin, itself, others=None, references=None):
    """The losses of samples, pair by pair."""
    made = []
    others = t if others is None else others
    references = p if references is None else references
    for i in range(len(t)):
        sums = {True: 0.0, False: 0.0}
        for j in range(len(others)):
            alike, distance = t[i] == others[j], max(1 - p[i] @ references[j], 0)
            if alike and i == j and not itself:
                continue
            if alike:
                power = -gamma * max(margin + distance, 0) * (margin - distance)
            else:
                power = gamma * max(1 + margin - distance, 0) * (1 - margin - distance)
            sums[alike] += np.exp(power)
        made.append(np.log1p(sums[True] * sums[False]))
    return np.array(made)


@given(
    seed=st.integers(0, 999),
    classes=st.integers(1, 4),
    itself=st.booleans(),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "mean_with_sample_weight"]),
)
@settings(max_examples=60, deadline=None)
def test_circles(seed, classes, itself, weighted, reduction):
    random = np.random.default_rng(seed)
    t = random.integers(0, classes, 6).astype(np.int32)
    p = random.normal(size=(6, 3))
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    each = circles(t, p, 5.0, 0.3, itself)
    weight = random.uniform(0.1, 2, 6) if weighted else None
    by = np.ones(6) if weight is None else weight
    count = {
        "sum": 1,
        "mean": (each > 0).sum(),
        "mean_with_sample_weight": (by * (each > 0)).sum(),
    }[reduction]
    loss = losses.Circle(5.0, 0.3, not itself, reduction=reduction)
    traced = Traced(loss, t, p, weight)
    found, slopes = traced.loss()
    wanted = (each * by).sum() / count if count else 0.0
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert np.isfinite(slopes).all()
    direction = random.normal(size=p.shape)
    expected = traced.slope(direction)
    assert (slopes * direction).sum() == pytest.approx(expected, rel=2e-4, abs=2e-6)


@pytest.mark.parametrize("itself", [False, True])
def test_circles_of_samples_and_others(itself):
    random = np.random.default_rng(3)
    t, u = np.int32([0, 1, 0, 2, 1, 0]), np.int32([1, 0, 1, 2])
    p, q = (random.normal(size=(n, 3)) for n in (6, 4))
    p, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (p, q))
    options = {"gamma": 5.0, "margin": 0.3, "remove_diagonal": not itself}
    for several in ((t, p), (t, p, u, q), (t[:4], p[:4], None, q)):
        wanted = circles(*several[:2], 5.0, 0.3, itself, *several[2:])
        np.testing.assert_allclose(
            losses.circle(*several, **options), wanted, rtol=2e-4
        )
    traced = mc.function(lambda t, p: losses.circle(t, p, **options))
    found = traced(t, np.float32(p))
    np.testing.assert_allclose(found, circles(t, p, 5.0, 0.3, itself), rtol=2e-4)


def test_circles_are_of_a_whole_batch():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(32, 4)).astype("f4"), random.integers(0, 3, 32)
    model = mc.nn.Sequential(
        [mc.nn.Input((4,)), mc.nn.Dense(3), mc.nn.UnitNormalization()]
    )
    model.compile(mc.nn.SGD(0.01), losses.Circle())
    kept = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert kept[-1] < kept[0]
    builder = Builder("alone")
    t = builder.tensor("t", (4,), "int32", role="input")
    p = builder.tensor("p", (4, 3), role="parameter")
    with pytest.raises(NotImplementedError, match="one number of a whole batch"):
        losses.Circle().check_samples(builder, t, p)


def test_errors_of_a_loss_are_not_taken_for_a_comparison_of_samples():
    class Own(losses.Loss):
        def __init__(self, compares):
            super().__init__()
            self.compares = compares

        def call(self, y_true, y_pred):
            if self.compares:
                return mc.nn.ops.mean(y_pred @ mc.nn.ops.transpose(y_pred), axis=1)
            raise ValueError("no weights for the classes")

    builder = Builder("alone")
    given = [builder.tensor(name, (4, 3), role="parameter") for name in "tp"]
    with pytest.raises(NotImplementedError, match="own compares the samples"):
        Own(True).check_samples(builder, *given)
    with pytest.raises(ValueError, match="no weights for the classes"):
        Own(False).check_samples(builder, *given)


def sequences(seed=0, count=12, steps=5, classes=3):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, steps, 4)).astype("f4")
    y = random.integers(0, classes, (count, 3))
    y[:, ::-1].sort()  # labels, then zeros
    return x, y


def sequence_model(classes=3):
    model = mc.nn.Sequential([mc.nn.Input((5, 4)), mc.nn.Dense(classes)])
    model.compile(mc.nn.SGD(0.1), "ctc")
    return model


def test_alignments_of_a_model():
    x, y = sequences()
    model = sequence_model()
    outputs = model.predict(x, verbose=0)
    each = []
    for scores, row in zip(outputs, y, strict=True):
        count = int((row != 0).sum())
        each.append(loss_of(scores.astype("f8"), row, count, 5, 0)[0])
    each = np.array(each)
    assert np.isfinite(each).all()
    found = model.evaluate(x, y, verbose=0)
    assert found == pytest.approx(each.mean(), rel=1e-5)
    by = np.linspace(0, 1, len(x))
    found = model.evaluate(x, y, sample_weight=by, verbose=0)
    assert found == pytest.approx((each * by).mean(), rel=1e-5)
    assert losses.CTC()(y, outputs) == pytest.approx(each.mean(), rel=1e-5)
    whole = np.pad(y, ((0, 0), (0, 2)))
    assert model.evaluate(x, whole, verbose=0) == model.evaluate(x, y, verbose=0)
    data = mc.data.Dataset.from_tensor_slices((x, y)).batch(4)
    assert model.evaluate(data, verbose=0) == pytest.approx(each.mean(), rel=1e-5)
    kept = model.fit(x, y, epochs=30, verbose=0).history["loss"]
    assert kept[-1] < kept[0]
    for wrong, words in (
        (np.zeros((12, 6), int), r"has shape \(12, 6\), but the loss reads"),
        (np.full((12, 3), 3), "label 3 at y.0, 0. is out of range"),
    ):
        with pytest.raises(ValueError, match=words):
            model.fit(x, wrong, verbose=0)
    with pytest.raises(ValueError, match="sample_weight has shape"):
        model.fit(x, y, sample_weight=np.ones((12, 3)), verbose=0)


def test_alignments_of_a_batch_in_parts():
    random, kept = np.random.default_rng(0), []
    x = random.normal(size=(256, 20, 8)).astype("f4")
    y = random.integers(1, 6, (256, 6))
    for limit in (None, 0.5):
        mc.config.reset()
        mc.nn.set_random_seed(0)
        model = mc.nn.Sequential([mc.nn.Input((20, 8)), mc.nn.Dense(6)])
        model.compile(mc.nn.SGD(0.1), "ctc")
        if limit is not None:
            mc.config.set_memory_limit("CPU:0", int(model.plan(256).peak_bytes * limit))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the batch runs in parts
            options = {"batch_size": 256, "epochs": 2, "shuffle": False, "verbose": 0}
            history = model.fit(x, y, **options)
        assert bool(history.fallbacks) == (limit is not None)
        kept.append([*history.history["loss"], *model.get_weights()])
        model.close()
    for one, other in zip(*kept, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-6)


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_labels_may_be_minus_one_where_that_is_ignored(dtype):
    model = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(3)])
    model.compile("sgd", losses.SparseCategoricalCrossentropy(True, ignore_class=-1))
    x = np.random.default_rng(0).normal(size=(6, 2)).astype("f4")
    y = np.array([0, -1, 2, 1, -1, 1])
    p = oracle.softmax(model.predict(x, verbose=0).astype(float))
    wanted = -np.log(p[y >= 0, y[y >= 0]]).mean()
    assert model.evaluate(x, y.astype(dtype), verbose=0) == pytest.approx(wanted, 1e-5)


class Apart(mc.nn.Layer):
    """Dense, whose product and bias are two ops."""

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], 40), "glorot_uniform")
        self.bias = self.add_weight((40,), "zeros")

    def call(self, x):
        return mc.nn.ops.matmul(x, self.kernel) + self.bias


def test_the_loss_of_a_bias_of_its_own_trains_as_denses():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)).astype("f4"), rng.integers(0, 40, 8)
    found = []
    for layer in (mc.nn.Dense(40), Apart()):
        mc.nn.set_random_seed(0)
        model = mc.nn.Sequential([mc.nn.Input((6,)), layer])
        model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
        model.set_weights([np.ones((6, 40), "f4"), np.arange(40, dtype="f4") / 40])
        for _ in range(3):
            model.train_on_batch(x, y)
        found.append(model.get_weights())
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_weights_that_do_not_fit():
    t = np.zeros((4, 3))
    with pytest.raises(ValueError, match="one weight for each sample"):
        Traced(losses.Huber(), t, t, np.ones(3))
