"""Losses and metrics beside Keras 3 on PyTorch: values, gradients, weights, steps."""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import Traced, softmax

import memcfg as mc

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="not on PyTorch"),
]
nn = mc.nn
SHAPES = st.sampled_from([(5, 1), (4, 3), (2, 3, 4), (3, 2, 2, 3)])
LOSSES = [
    name
    for name in nn.losses.__all__
    if name not in ("Loss", "Target") and not name.islower()
]
# Of metrics Keras has no class of, and what logs cannot hold.
APART = {"Metric", "Mean", "Sum", "MeanMetricWrapper"}  # and unions, tested below
METRICS = [
    name
    for name in nn.metrics.__all__
    if name not in APART and not name.endswith("IoU") and not name.islower()
]
FUNCTIONS = [
    (room, name)
    for room in ("losses", "metrics")
    for name, each in vars(getattr(nn, room)).items()
    if name in getattr(nn, room).__all__ and name.islower() and hasattr(each, "kind")
]
PROBABILITIES = ("Categorical", "KL", "Sparse", "TopK", "F1", "FBeta")


def arrays(name, random, shape):
    """Targets and outputs that a loss or metric of a name takes."""
    hinge = "Hinge" in name
    if name == "CTC":  # labels, then zeros
        labels = random.integers(0, 4, (shape[0], 3)).astype(np.int32)
        labels[:, ::-1].sort()
        return labels, random.normal(size=(shape[0], 6, 4))
    if name == "Circle":
        p = random.normal(size=(shape[0], 3))
        labels = random.integers(0, 2, shape[0]).astype(np.int32)
        return labels, p / np.linalg.norm(p, axis=-1, keepdims=True)
    if "Sparse" in name or any(name.startswith(each) for each in PROBABILITIES):
        shape = (*shape[:-1], shape[-1] + 1)
        p = softmax(random.normal(size=shape))
        labels = random.integers(0, shape[-1], shape[:-1])
        if "Sparse" in name or "Generalized" in name:
            return labels.astype(np.int32), p
        return np.eye(shape[-1])[labels], p
    if "Correlation" in name:
        return random.uniform(-2, 2, (2, *shape[:-1], shape[-1] + 2))
    if name.startswith(("Mean", "Root", "Huber", "Log", "Cosine", "R2")):
        low = 0.1 if "Logarithmic" in name else -2
        return random.uniform(low, 2, (2, *shape))
    if name == "Poisson":
        return random.uniform(0.1, 2, (2, *shape))
    t = random.integers(0, 2, shape).astype(float)
    if name == "Accuracy":
        return t, random.integers(0, 2, shape).astype(float)
    return (2 * t - 1 if hinge and shape[0] > 3 else t), random.uniform(
        0.02, 0.98, shape
    )


def options(name, draw):
    """Arguments beside the defaults."""
    found = {}
    if "Crossent" in name and draw(st.booleans()):
        found["from_logits"] = True
    if "Crossent" in name and "Sparse" not in name and draw(st.booleans()):
        found["label_smoothing"] = draw(st.sampled_from([0.1, 0.3]))
    if "Focal" in name:
        found |= {"alpha": draw(st.floats(0.1, 0.9)), "gamma": draw(st.floats(0, 3))}
    if name == "BinaryFocalCrossentropy":
        found["apply_class_balancing"] = draw(st.booleans())
    if name == "Huber":
        found["delta"] = draw(st.floats(0.1, 2))
    if "Generalized" in name:
        found["q"] = draw(st.floats(0.1, 0.9))
    if name == "Circle":
        found |= {"gamma": draw(st.floats(1, 20)), "margin": draw(st.floats(0.1, 0.6))}
        found["remove_diagonal"] = draw(st.booleans())
    if name == "Tversky":
        found |= {"alpha": 0.3, "beta": 0.8}
    if name in ("Tversky", "Dice"):
        found["axis"] = draw(st.sampled_from([None, -1]))
    return found


def arguments(kind):
    return [
        (name, each.default)
        for name, each in inspect.signature(kind.__init__).parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]


@pytest.mark.parametrize("room", ["losses", "metrics", "regularizers"])
def test_arguments_their_order_and_defaults(room):
    ours = getattr(nn, room)
    for name in ours.__all__:
        if name in ("Loss", "Metric", "Target", "Regularizer"):
            continue
        kinds = [getattr(each, name) for each in (ours, getattr(keras, room))]
        if name.islower() and not isinstance(kinds[0], type):
            continue
        found, wanted = (
            [(n, None if n == "name" else value) for n, value in arguments(kind)]
            for kind in kinds
        )
        assert found == wanted, name


@pytest.mark.parametrize("name", LOSSES)
def test_names(name):
    """A loss made without a name has Keras's."""
    assert getattr(nn.losses, name)().name == getattr(keras.losses, name)().name


@pytest.mark.parametrize("name", LOSSES)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_losses_and_their_gradients(name, data, shape, seed):
    if "Sparse" in name:  # PyTorch's own loss of images wants contiguous gradients
        shape = shape[:3]
    random = np.random.default_rng(seed)
    t, p = arrays(name, random, shape)
    chosen = options(name, data.draw)
    if chosen.get("from_logits"):
        p = random.normal(size=p.shape)
    t, p = (np.float32(t) if t.dtype.kind == "f" else t), np.float32(p)
    weight = None
    ndim = p.ndim - 1 if name not in ("Dice", "Tversky") else 0
    ndim = 1 if name == "CTC" else ndim
    if ndim and data.draw(st.booleans()):
        weight = np.float32(random.uniform(0, 2, p.shape[:ndim]))
    reductions = ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight"]
    chosen["reduction"] = data.draw(st.sampled_from(reductions))
    found, slopes = Traced(getattr(nn.losses, name)(**chosen), t, p, weight).loss()

    output = keras.ops.convert_to_tensor(p).requires_grad_()
    theirs = getattr(keras.losses, name)(**chosen)(t, output, sample_weight=weight)
    if theirs.ndim:  # Keras leaves what has one axis as it is in one case
        theirs = theirs.mean()
    theirs.backward()
    expected = theirs.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(slopes, output.grad.numpy(), rtol=1e-4, atol=1e-5)


SOFT = [  # losses of targets that are no labels
    name
    for name in LOSSES
    if arrays(name, np.random.default_rng(0), (4, 3))[0].dtype.kind == "f"
]


@pytest.mark.parametrize("name", SOFT)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 999))
@settings(max_examples=6, deadline=None)
def test_gradients_by_targets(name, data, shape, seed):
    """As of distilled or contrasted outputs, which depend on weights too."""
    random = np.random.default_rng(seed)
    _, p = arrays(name, random, shape)
    t, p = np.float32(random.uniform(0.1, 0.9, p.shape)), np.float32(p)
    chosen = options(name, data.draw)
    target = keras.ops.convert_to_tensor(t).requires_grad_()
    getattr(keras.losses, name)(**chosen)(target, p).mean().backward()
    loss = getattr(nn.losses, name)(**chosen)
    found = mc.grad(lambda t: nn.ops.mean(loss(t, p)))(t)
    np.testing.assert_allclose(found, target.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("room", "name"), FUNCTIONS)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 999))
@settings(max_examples=6, deadline=None)
def test_functions_and_their_gradients(room, name, data, shape, seed):
    ours, theirs = (getattr(getattr(each, room), name) for each in (nn, keras))
    own = [
        [(n, each.default) for n, each in inspect.signature(f).parameters.items()]
        for f in (ours, theirs)
    ]
    assert own[0] == own[1]
    kind = ours.kind.__name__
    if "sparse" in name or "categorical_hinge" in name:
        shape = shape[:3]
    random = np.random.default_rng(seed)
    t, p = arrays(kind, random, shape)
    known = {n for n, _ in own[0]}
    chosen = {n: v for n, v in options(kind, data.draw).items() if n in known}
    if chosen.get("from_logits"):
        p = random.normal(size=p.shape)
    if "k" in known:
        chosen["k"] = data.draw(st.integers(1, p.shape[-1]))
    t, p = (np.float32(t) if t.dtype.kind == "f" else t), np.float32(p)
    output = keras.ops.convert_to_tensor(p).requires_grad_()
    expected = theirs(t, output, **chosen)
    found = ours(t, p, **chosen)
    assert found.shape == tuple(expected.shape)
    expected_numbers = expected.detach().numpy()
    np.testing.assert_allclose(found, expected_numbers, rtol=1e-4, atol=1e-5)
    if room == "metrics":
        return
    expected.sum().backward()
    slope = mc.grad(lambda p: nn.ops.sum(ours(t, p, **chosen)))
    np.testing.assert_allclose(slope(p), output.grad.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("ignored", [-1, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
def test_ignored_classes(ignored, weighted, from_logits):
    random = np.random.default_rng(0)
    p = np.float32(softmax(random.normal(size=(5, 4, 3))))
    t = random.integers(0, 3, (5, 4)).astype(np.int32)
    t[random.random(t.shape) < 0.3] = ignored
    weight = np.float32(random.uniform(0.5, 2, t.shape)) if weighted else None
    for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight"):
        chosen = {"ignore_class": ignored, "reduction": reduction}
        ours, theirs = (
            each.SparseCategoricalCrossentropy(from_logits=from_logits, **chosen)
            for each in (nn.losses, keras.losses)
        )
        expected = float(theirs(t, p, sample_weight=weight))
        assert Traced(ours, t, p, weight).loss()[0] == pytest.approx(expected, rel=1e-5)


def measure(name, data, units):
    """Make a metric of both libraries."""
    chosen = {}
    if name in ("F1Score", "FBetaScore"):
        chosen["average"] = data.draw(st.sampled_from(["micro", "macro", "weighted"]))
        chosen["threshold"] = data.draw(st.sampled_from([None, 0.3]))
    if name == "AUC":
        chosen["num_thresholds"] = data.draw(st.sampled_from([5, 50, 200]))
        chosen["curve"] = data.draw(st.sampled_from(["ROC", "PR", "PRGAIN"]))
        methods = ["interpolation", "majoring", "minoring"]
        chosen["summation_method"] = data.draw(st.sampled_from(methods))
        if data.draw(st.booleans()):
            chosen["thresholds"] = [0.15, 0.4, 0.45]
        chosen["multi_label"] = data.draw(st.booleans())
        if data.draw(st.booleans()):
            chosen["label_weights"] = list(np.linspace(0.5, 2, units))
    if "At" in name:
        chosen[name.split("At")[1].lower()] = data.draw(st.sampled_from([0.3, 0.6]))
    if "TopK" in name:
        chosen["k"] = data.draw(st.integers(1, 2))
    if name in ("Precision", "Recall", "TruePositives", "FalseNegatives"):
        chosen["thresholds"] = data.draw(st.sampled_from([None, 0.2, 0.7, [0.2, 0.7]]))
    if name in ("Precision", "Recall"):
        chosen["top_k"] = data.draw(st.sampled_from([None, 1]))
        chosen["class_id"] = data.draw(st.sampled_from([None, 0]))
    if name == "BinaryAccuracy":
        chosen["threshold"] = data.draw(st.sampled_from([0.5, 0.2]))
    return (getattr(each, name)(**chosen) for each in (nn.metrics, keras.metrics))


@pytest.mark.parametrize("name", METRICS)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 999))
@settings(max_examples=8, deadline=None)
def test_metrics_over_two_batches(name, data, shape, seed):
    random = np.random.default_rng(seed)
    ours, theirs = measure(name, data, shape[-1])
    if name in ("F1Score", "FBetaScore", "R2Score"):
        shape = (shape[0], shape[-1])
    flat = "TopK" in name or "At" in name or name == "AUC"
    if flat or name.startswith(("True", "False", "Precision", "Recall")):
        shape = (shape[0], shape[-1])
    weighted = data.draw(st.booleans())
    sums = []
    for size in (shape[0] + 4, 3):
        t, p = (np.asarray(each) for each in arrays(name, random, (size, *shape[1:])))
        t, p = (np.float32(t) if t.dtype.kind == "f" else t), np.float32(p)
        weight = np.float32(random.uniform(0.1, 2, size)) if weighted else None
        if weighted and p.ndim > 2:  # Keras wants one for each step, then
            weight = np.float32(random.uniform(0.1, 2, p.shape[:-1]))
        sums.append(Traced(ours, t, p, weight).sums())
        theirs.update_state(t, p, sample_weight=weight)
    found = ours.result([np.sum(each, 0) for each in zip(*sums, strict=True)])
    expected = keras.ops.convert_to_numpy(theirs.result())
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("units", "activation", "loss", "metrics"),
    [
        (1, None, "mse", ["mae", "root_mean_squared_error"]),
        (2, None, "huber", ["mse", "r2_score"]),
        (1, "sigmoid", "binary_crossentropy", ["accuracy", "AUC", "Precision"]),
        (3, "softmax", "categorical_crossentropy", ["accuracy", "f1"]),
        (3, "softmax", "sparse_categorical_crossentropy", ["accuracy"]),
        (3, "softmax", "kl_divergence", ["categorical_accuracy"]),
        (3, None, "categorical_hinge", ["accuracy"]),
        (2, "sigmoid", "binary_focal_crossentropy", ["binary_accuracy"]),
        (3, None, "cosine_similarity", ["cosine_similarity"]),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_model_trains_and_logs_as_keras(
    units, activation, loss, metrics, weighted, request
):
    """Ten steps of `fit`, then `evaluate`: logs, outputs and weights agree."""
    random = np.random.default_rng(1)
    x = np.float32(random.normal(size=(50, 6)))
    if "sparse" in loss:
        y = random.integers(0, units, 50)
    elif activation == "sigmoid":
        y = random.integers(0, 2, (50, units)).astype(np.float32)
    elif units == 3 and "cosine" not in loss:
        y = np.eye(3, dtype=np.float32)[random.integers(0, 3, 50)]
    else:
        y = np.float32(random.normal(size=(50, units)))
    weight = np.float32(random.uniform(0.1, 2, 50)) if weighted else None

    def made(library):
        model = library.Sequential(
            [
                library.Input((6,)),
                library.layers.Dense(5, activation="tanh"),
                library.layers.Dense(units, activation=activation),
            ]
        )
        of = [
            library.metrics.F1Score(average="macro") if each == "f1" else each
            for each in metrics
        ]
        model.compile("sgd", loss, metrics=of)
        return model

    ours, theirs = made(nn), made(keras)
    ours.set_weights(theirs.get_weights())
    options = {"sample_weight": weight, "verbose": 0}
    request.addfinalizer(ours.close)
    logs = [
        model.fit(x, y, batch_size=10, epochs=2, shuffle=False, **options).history
        for model in (ours, theirs)
    ]
    assert set(logs[0]) == set(logs[1])
    for name, found in logs[0].items():
        np.testing.assert_allclose(found, logs[1][name], rtol=1e-4, atol=1e-5)
    for one, two in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    found, wanted = (
        model.evaluate(x, y, return_dict=True, **options) for model in (ours, theirs)
    )
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_penalties_train_as_in_keras(request):
    random = np.random.default_rng(2)
    x = np.float32(random.normal(size=(50, 6)))
    y = np.float32(random.normal(size=(50, 2)))

    def made(library):
        penalty = library.regularizers
        model = library.Sequential(
            [
                library.Input((6,)),
                library.layers.Dense(
                    5,
                    activation="tanh",
                    kernel_regularizer=penalty.L1L2(0.02, 0.1),
                    bias_regularizer="l1",
                    activity_regularizer=penalty.L2(0.05),
                ),
                library.layers.Dense(
                    4, kernel_regularizer=penalty.OrthogonalRegularizer(0.2)
                ),
                library.layers.Dense(
                    3,
                    kernel_regularizer=penalty.orthogonal_regularizer(
                        0.3, mode="columns"
                    ),
                ),
                library.layers.Dense(2, kernel_regularizer=penalty.l2(0.3)),
            ]
        )
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    ours, theirs = made(nn), made(keras)
    request.addfinalizer(ours.close)
    ours.set_weights(theirs.get_weights())
    for model in (ours, theirs):
        model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    for one, two in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    found, wanted = (
        model.evaluate(x, y, batch_size=10, return_dict=True, verbose=0)
        for model in (ours, theirs)
    )
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_masks_reach_losses_and_metrics_as_in_keras(weighted, request):
    random = np.random.default_rng(3)
    x = random.integers(0, 4, (12, 7)).astype(np.int32)
    y = random.integers(0, 3, (12, 7))
    weight = np.float32(random.uniform(0.1, 2, 12)) if weighted else None

    def made(library):
        model = library.Sequential(
            [
                library.Input((7,), dtype="int32"),
                library.layers.Embedding(4, 4, mask_zero=True),
                library.layers.SimpleRNN(6, return_sequences=True),
                library.layers.Dense(3, activation="softmax"),
            ]
        )
        loss = "sparse_categorical_crossentropy"
        model.compile("sgd", loss, metrics=["accuracy", loss])
        return model

    ours, theirs = made(nn), made(keras)
    request.addfinalizer(ours.close)
    ours.set_weights(theirs.get_weights())
    logs = []
    for model, weights in ((ours, weight), (theirs, weight)):
        if model is theirs and weighted:  # Keras's own wants one for each step
            weights = np.repeat(weight[:, None], 7, 1)
        options = {"sample_weight": weights, "shuffle": False, "verbose": 0}
        logs.append(model.fit(x, y, batch_size=6, epochs=2, **options).history)
    assert set(logs[0]) == set(logs[1])
    for name, found in logs[0].items():
        np.testing.assert_allclose(found, logs[1][name], rtol=1e-4, atol=1e-5)
    for one, two in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METRICS)
def test_which_way_a_metric_is_better(name):
    given = [0.5] if "At" in name else []
    theirs = getattr(getattr(keras.metrics, name)(*given), "_direction", None)
    assert getattr(nn.metrics, name)(*given).direction == theirs


def _of(library, kind, weighted):
    """A loss as users of Keras write it, for either library, and a metric."""

    def cubes(y_true, y_pred):
        error = abs(y_true - y_pred) ** 3
        # Keras multiplies weights with numbers of the samples alone.
        return library.ops.mean(error, axis=-1) if weighted else error

    class Cubes(library.losses.Loss):
        def call(self, y_true, y_pred):
            return cubes(y_true, y_pred)

    return cubes if kind == "function" else Cubes(reduction=kind), cubes


@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["function", "sum_over_batch_size", "sum"])
def test_losses_and_metrics_of_users(kind, weighted, units, request):
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 5)).astype(np.float32)
    y = random.normal(size=(24, units)).astype(np.float32)
    weight = random.random(24).astype(np.float32) if weighted else None
    found = []
    for library in (keras, nn):
        model = library.Sequential(
            [library.layers.Input((5,)), library.layers.Dense(units)]
        )
        if library is nn:
            request.addfinalizer(model.close)
        model.set_weights([np.full((5, units), 0.25, "f4"), np.zeros(units, "f4")])
        loss, metric = _of(library, kind, weighted)
        given = {"weighted_metrics" if weighted else "metrics": [metric]}
        model.compile(library.optimizers.SGD(0.001), loss, **given)
        history = model.fit(
            x, y, 8, epochs=3, shuffle=False, verbose=0, sample_weight=weight
        )
        found.append((history.history, model.get_weights()))
    (theirs, wanted), (ours, weights) = found
    for a, b in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert ours.keys() == theirs.keys()
    for name, numbers in ours.items():
        np.testing.assert_allclose(numbers, theirs[name], rtol=1e-4)


@pytest.mark.parametrize("ignore", [None, 1])
@pytest.mark.parametrize("name", ["IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"])
def test_intersections_over_unions(name, ignore):
    rng = np.random.default_rng(0)
    more = () if "Mean" in name else ([0, 2],)
    both = []
    for room in (mc.nn.metrics, keras.metrics):
        metric = getattr(room, name)(3, *more, ignore_class=ignore)
        rng = np.random.default_rng(0)
        for _ in range(2):
            t, p = rng.integers(0, 3, (2, 20))
            if "Hot" in name:
                t, p = np.eye(3)[t], np.eye(3)[p] + rng.uniform(0, 0.5, (20, 3))
            metric.update_state(t, p)
        both.append(float(metric.result()))
    assert both[0] == pytest.approx(both[1], rel=1e-5)


def test_unions_of_thresholds_means_and_sums():
    rng = np.random.default_rng(0)
    t, p, w = rng.integers(0, 2, 20), rng.uniform(size=20), rng.uniform(size=20)
    values = rng.normal(size=(20, 3))
    for make in (
        lambda room: room.BinaryIoU([0, 1], 0.3)(t, p),
        lambda room: room.Mean()(values, w),
        lambda room: room.Mean()(values),
        lambda room: room.Sum()(values, w),
        lambda room: room.Sum()(values),
    ):
        ours, theirs = (float(make(room)) for room in (mc.nn.metrics, keras.metrics))
        assert ours == pytest.approx(theirs, rel=1e-5)
