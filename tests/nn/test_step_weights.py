"""Sample weights of the steps of sequences, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
SAMPLES, STEPS, CLASSES = 10, 4, 3


def made(loss="mse", *, masked=False, two=False, **options):
    x = nn.Input((STEPS, 2))
    h = nn.Masking()(x) if masked else x
    y = nn.Dense(CLASSES, name="steps")(h)
    last = nn.Dense(1, name="last")(nn.Flatten()(h)) if two else None
    model = nn.Model(x, [y, last] if two else y)
    model.compile(nn.SGD(0.1), loss, **options)
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((SAMPLES, STEPS, 2)).astype("f4")
    y = rng.standard_normal((SAMPLES, STEPS, CLASSES)).astype("f4")
    return x, y, rng.uniform(0, 2, (SAMPLES, STEPS)).astype("f4")


def errors(model, x, y):
    kernel, bias = model.get_weights()[:2]
    return ((x @ kernel + bias - y) ** 2).mean(-1)


def test_a_loss_and_its_metrics_are_those_of_numpy(data):
    x, y, weights = data
    model = made(weighted_metrics=["mae"])
    kernel, bias = model.get_weights()
    found = model.evaluate(x, y, SAMPLES, 0, sample_weight=weights)
    distances = abs(x @ kernel + bias - y).mean(-1)
    expected = [
        (errors(model, x, y) * weights).mean(),
        (distances * weights).sum() / weights.sum(),
    ]
    np.testing.assert_allclose(found, expected, 1e-5)
    slope = 2 * (x @ kernel + bias - y) * weights[..., None] / y.size
    model.train_on_batch(x, y, weights)
    moved = kernel - 0.1 * np.einsum("nti,ntj->ij", x, slope)
    np.testing.assert_allclose(model.get_weights()[0], moved, 1e-5)


def test_labels_and_masks(data):
    x, _, weights = data
    labels = np.random.default_rng(0).integers(0, CLASSES, (SAMPLES, STEPS))
    x[2:5, 1:] = 0
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model = made(loss, masked=True)
    kernel, bias = model.get_weights()
    logits = x @ kernel + bias
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    entropies = np.log(np.exp(logits).sum(-1)) - chosen
    mask = x.any(-1)
    expected = (entropies * weights * mask).sum() / mask.sum()
    found = model.evaluate(x, labels, SAMPLES, 0, sample_weight=weights)
    np.testing.assert_allclose(found, expected, 1e-5)


def test_every_way_to_give_them(data):
    x, y, weights = data
    expected = made()
    start = expected.get_weights()
    options = {"batch_size": 4, "epochs": 2, "verbose": 0, "shuffle": False}
    held = {"validation_data": (x, y, weights)}
    history = expected.fit(x, y, sample_weight=weights, **options, **held).history
    dataset = mc.data.Dataset.from_tensor_slices((x, y, weights)).batch(4)
    parts = [slice(i, i + 4) for i in range(0, SAMPLES, 4)]
    batches = [(x[part], y[part], weights[part]) for part in parts]
    for given in (dataset, batches):
        model = made()
        model.set_weights(start)
        found = model.fit(given, epochs=2, verbose=0, validation_data=given).history
        for name in history:
            np.testing.assert_allclose(found[name], history[name], 1e-6)
        ends = zip(model.get_weights(), expected.get_weights(), strict=True)
        assert all(np.array_equal(*pair) for pair in ends)
    part = slice(SAMPLES // 2, None)
    numbers = expected.test_on_batch(x[part], y[part], weights[part])
    np.testing.assert_allclose(
        numbers, (errors(expected, x[part], y[part]) * weights[part]).mean(), 1e-5
    )
    tall = expected.evaluate(x, y, verbose=0, sample_weight=weights[:, :1])
    flat = expected.evaluate(x, y, verbose=0, sample_weight=weights[:, 0])
    assert tall == flat
    assert flat != expected.evaluate(x, y, verbose=0, sample_weight=weights)


def test_each_output_has_its_own(data):
    x, y, weights = data
    model = made(["mse", "mse"], two=True)
    z = np.ones((SAMPLES, 1), "f4")
    given = {"steps": weights, "last": weights[:, 0]}
    found = model.evaluate(x, [y, z], SAMPLES, 0, sample_weight=given)
    only = (errors(model, x, y) * weights).mean()
    np.testing.assert_allclose(found[1], only, 1e-5)
    model.fit(x, [y, z], sample_weight=list(given.values()), verbose=0)
    with pytest.raises(
        ValueError, match=r"\(10, 4\).* not fit losses of shape \(10,\)"
    ):
        model.fit(x, [y, z], sample_weight=weights, verbose=0)


def test_wrong_shapes_are_told(data):
    x, y, weights = data
    model = made()
    before = model.get_weights()
    for wrong in (weights[:, :3], np.ones((SAMPLES, STEPS, CLASSES)), weights.T):
        for use in (model.fit, model.evaluate):
            with pytest.raises(
                ValueError, match=r"sample_weight .*one number for each"
            ):
                use(x, y, sample_weight=wrong, verbose=0)
        with pytest.raises(ValueError, match=r"sample_weight .*one number for each"):
            model.train_on_batch(x, y, wrong)
    dataset = mc.data.Dataset.from_tensor_slices((x, y, weights[:, :3])).batch(4)
    with pytest.raises(
        ValueError, match=r"\(4, 3\).* not match losses of shape \(4, 4\)"
    ):
        model.fit(dataset, verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))
