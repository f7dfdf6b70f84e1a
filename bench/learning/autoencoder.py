"""A variational autoencoder of digits, with the divergence as a loss of a layer.

The score is the error of what is restored from the mean of the code, beside that of the
mean digit (Kingma and Welling 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, digits, outcome_of, start_alike

CHANCE, WANTED = 1.0, 0.65
CODE = 8


def train(k: Any, own: bool) -> Outcome:
    class Sampled(k.layers.Layer):
        """Add a weighted divergence; noise comes as data, so that both sides agree."""

        def call(self, inputs: Any) -> Any:
            mean, log_variance, noise = inputs
            square, grown = k.ops.square(mean), k.ops.exp(log_variance)
            apart = 0.5 * (square + grown - 1.0 - log_variance)
            self.add_loss(0.02 * k.ops.mean(apart))
            return mean + k.ops.exp(0.5 * log_variance) * noise

    images, _ = digits()
    x = images.reshape(-1, 64)
    noise = np.random.default_rng(1).standard_normal((len(x), CODE)).astype(np.float32)
    layers = k.layers
    start, drawn = k.Input((64,)), k.Input((CODE,))
    hidden = layers.Dense(256, activation="relu")(start)
    hidden = layers.Dense(128, activation="relu")(hidden)
    mean, log_variance = layers.Dense(CODE)(hidden), layers.Dense(CODE)(hidden)
    code = Sampled()([mean, log_variance, drawn])
    back = layers.Dense(128, activation="relu")(code)
    back = layers.Dense(256, activation="relu")(back)
    model = k.Model([start, drawn], layers.Dense(64, activation="sigmoid")(back))
    start_alike([model])
    model.compile(k.optimizers.Adam(2e-3), "binary_crossentropy")
    train_on = [x[:1500], noise[:1500]]
    model.fit(train_on, x[:1500], batch_size=250, epochs=25, shuffle=False, verbose=0)
    restored = model.predict([x[1500:], 0 * noise[1500:]], verbose=0)
    error = np.mean(np.square(restored - x[1500:]))
    score = error / np.mean(np.square(x[:1500].mean(0) - x[1500:]))
    return outcome_of(score, [model], model.memory_plan if own else None)
