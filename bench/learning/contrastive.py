"""SimCLR: two noisy views of a digit should agree (T. Chen et al. 2020).

The score is the accuracy of a linear classifier on 200 labelled codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, digits, outcome_of, start_alike, stepper

CHANCE, WANTED = 0.1, 0.85
BATCH, EPOCHS = 100, 12


def views(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return digits shifted by at most one pixel, with noise."""
    moved = np.stack(
        [np.roll(each, generator.integers(-1, 2, 2), (0, 1)) for each in x]
    )
    return (moved + generator.normal(0, 0.1, x.shape)).astype(np.float32)


def agreement(k: Any, a: Any, b: Any) -> Any:
    """Return NT-Xent of the codes of two views, at temperature 0.2."""
    codes = k.ops.concatenate([a, b], 0)
    codes = codes / k.ops.sqrt(k.ops.sum(k.ops.square(codes), 1, keepdims=True))
    scores = k.ops.matmul(codes, k.ops.transpose(codes)) / 0.2
    scores = k.ops.subtract(scores, 1e9 * np.eye(2 * BATCH, dtype=np.float32))
    other = np.roll(np.eye(2 * BATCH, dtype=np.float32), BATCH, 1)
    chosen = k.ops.multiply(k.ops.log_softmax(scores), other)
    return -k.ops.mean(k.ops.sum(chosen, 1))


def train(k: Any, own: bool) -> Outcome:
    from sklearn.linear_model import LogisticRegression

    x, y = digits()
    layers = k.layers
    start = k.Input((8, 8, 1))
    hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(start)
    hidden = layers.MaxPooling2D(2)(hidden)
    hidden = layers.Conv2D(32, 3, padding="same", activation="relu")(hidden)
    features = layers.Flatten()(hidden)
    model = k.Model(start, layers.Dense(32)(features))
    start_alike([model])

    def loss_of(a: Any, b: Any) -> Any:
        return agreement(k, model(a, training=True), model(b, training=True))

    step = stepper(loss_of, model, k.optimizers.Adam(2e-3), own)
    generator = np.random.default_rng(3)
    for _ in range(EPOCHS):
        for begin in range(0, 1500, BATCH):
            part = x[begin : begin + BATCH]
            a, b = views(part, generator), views(part, generator)
            step(a, b)
    plan = None
    if own:
        plan = step.plan(a, b)
        step.close()
    codes = model.predict(x, verbose=0)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    probe = LogisticRegression(C=10, max_iter=2000).fit(codes[:200], y[:200])
    return outcome_of(probe.score(codes[1500:], y[1500:]), [model], plan)
