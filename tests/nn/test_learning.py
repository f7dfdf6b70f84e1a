"""Networks learn from data: numbers, two unequal classes, the class of each pixel."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

import memcfg as mc

nn = mc.nn


def test_an_mlp_regresses_as_well_as_that_of_scikit_learn():
    """The mean over splits: one split's R2 has a standard deviation of 0.08."""
    data = load_diabetes(return_X_y=True)
    found = []
    for seed in range(12):
        x, x_test, y, y_test = train_test_split(*data, random_state=seed)
        of_x, of_y = StandardScaler().fit(x), StandardScaler().fit(y[:, None])
        x, x_test = of_x.transform(x), of_x.transform(x_test)
        y, y_test = of_y.transform(y[:, None]), of_y.transform(y_test[:, None])
        nn.set_random_seed(seed)
        hidden = nn.Dense(64, activation="relu")
        model = nn.Sequential([nn.Input((10,)), hidden, nn.Dense(1)])
        model.compile(nn.Adam(0.001), "mse")
        model.fit(x, y, batch_size=32, epochs=20, verbose=0, seed=seed)
        peer = MLPRegressor(
            hidden_layer_sizes=(64,), batch_size=32, max_iter=20, random_state=seed
        )
        with warnings.catch_warnings():  # it counts epochs, as memcfg does
            warnings.simplefilter("ignore", ConvergenceWarning)
            peer.fit(x, y[:, 0])
        predictions = model.predict(x_test, verbose=0), peer.predict(x_test)
        found.append([r2_score(y_test, each) for each in predictions])
        model.close()
    ours, theirs = np.mean(found, axis=0)
    assert ours > theirs - 0.02
    assert ours > 0.42


def test_a_binary_classifier_with_class_weights_is_right_in_95_of_100():
    data = load_breast_cancer(return_X_y=True)
    found = []
    for seed in range(3):
        parts = train_test_split(*data, test_size=0.3, random_state=seed)
        x, x_test, y, y_test = parts
        scaler = StandardScaler().fit(x)
        nn.set_random_seed(seed)
        model = nn.Sequential(
            [
                nn.Input((30,)),
                nn.Dense(16, activation="relu"),
                nn.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(nn.Adam(0.005), "binary_crossentropy", metrics=["accuracy"])
        weights = len(y) / (2 * np.bincount(y))
        model.fit(
            *(scaler.transform(x), y),
            epochs=15,
            verbose=0,
            seed=seed,
            class_weight=dict(enumerate(weights.tolist())),
        )
        logs = model.evaluate(
            scaler.transform(x_test), y_test, verbose=0, return_dict=True
        )
        found.append(logs["accuracy"])
        model.close()
    assert min(found) >= 0.95


SIZE = 16


def shapes(count, seed):
    """Noisy images of a circle or a square; the class of each pixel: 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    top, left = rng.integers(5, SIZE - 5, (2, count, 1, 1))
    radius = rng.integers(3, 6, (count, 1, 1))
    square = rng.random((count, 1, 1)) < 0.5
    down, right = abs(rows - top), abs(columns - left)
    distance = np.where(square, np.maximum(down, right), np.hypot(down, right))
    inside = distance <= radius
    x = inside + rng.normal(0, 0.2, inside.shape)
    return x[..., None], inside * np.where(square, 2, 1)


def convolution(width, h):
    h = nn.Conv2D(width, 3, padding="same", use_bias=False)(h)
    return nn.ReLU()(nn.BatchNormalization(momentum=0.9)(h))


def unet(inputs):
    fine = convolution(6, inputs)
    middle = convolution(12, nn.MaxPooling2D()(fine))
    h = convolution(24, nn.MaxPooling2D()(middle))
    h = convolution(24, h)
    h = nn.Conv2DTranspose(12, 2, strides=2)(h)
    h = convolution(12, nn.Concatenate()([h, middle]))
    return convolution(6, nn.Concatenate()([nn.UpSampling2D()(h), fine]))


def shallow(inputs):
    """What a network finds that sees no whole shape."""
    return convolution(24, inputs)


def iou(model, x, y):
    """Intersection over union, the mean of circles and squares."""
    p = model.predict(x, verbose=0).argmax(-1)
    pairs = [(p == kind, y == kind) for kind in (1, 2)]
    return np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs])


def segmented(network):
    """The IoU of images that were held back, before and after training."""
    nn.set_random_seed(0)
    inputs = nn.Input((SIZE, SIZE, 1))
    model = nn.Model(inputs, nn.Conv2D(3, 1)(network(inputs)))
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    x, y = shapes(1024, seed=0)
    held = shapes(256, seed=1)
    decay = nn.optimizers.schedules.CosineDecay(0.01, 3 * len(x) // 16)
    model.compile(nn.Adam(decay), loss)
    before = iou(model, *held)
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, seed=0)
    after = iou(model, *held)
    model.close()
    return before, after


def test_a_unet_segments_shapes_that_it_has_to_see_whole():
    untrained, after = segmented(unet)
    assert after > 0.85
    assert untrained < 0.2
    assert segmented(shallow)[1] < 0.5
