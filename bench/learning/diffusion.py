"""A denoising diffusion model of points on two circles (Ho, Jain and Abbeel 2020).

The score is the mean distance of 500 drawn points from the nearer circle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike

CHANCE, WANTED = 0.45, 0.2
STEPS = 40
BETAS = np.linspace(1e-3, 0.2, STEPS)
KEPT = np.cumprod(1 - BETAS)


def points(count: int, generator: np.random.Generator) -> np.ndarray:
    angle = generator.uniform(0, 2 * np.pi, count)
    radius = generator.choice([0.5, 1.5], count)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def at(step: np.ndarray) -> np.ndarray:
    waves = step[:, None] / STEPS * 2.0 ** np.arange(5) * np.pi
    return np.hstack([np.sin(waves), np.cos(waves)]).astype(np.float32)


def train(k: Any, own: bool) -> Outcome:
    generator = np.random.default_rng(0)
    clean = points(20_000, generator)
    step = generator.integers(0, STEPS, len(clean))
    noise = generator.standard_normal(clean.shape)
    kept = KEPT[step][:, None]
    noisy = np.sqrt(kept) * clean + np.sqrt(1 - kept) * noise
    layers = k.layers
    start, when = k.Input((2,)), k.Input((10,))
    x = layers.Concatenate()([start, when])
    for _ in range(4):
        x = layers.Dense(96, activation="silu")(x)
    model = k.Model([start, when], layers.Dense(2)(x))
    start_alike([model])
    model.compile(k.optimizers.Adam(2e-3), "mse")
    given = [noisy.astype(np.float32), at(step)]
    model.fit(
        given,
        noise.astype(np.float32),
        batch_size=500,
        epochs=60,
        shuffle=False,
        verbose=0,
    )
    drawn = generator.standard_normal((500, 2))
    for each in range(STEPS - 1, -1, -1):
        times = at(np.full(500, each))
        told = model.predict([drawn.astype(np.float32), times], verbose=0)
        drawn = drawn - BETAS[each] / np.sqrt(1 - KEPT[each]) * told
        drawn /= np.sqrt(1 - BETAS[each])
        if each:
            drawn += np.sqrt(BETAS[each]) * generator.standard_normal(drawn.shape)
    length = np.linalg.norm(drawn, axis=1)[:, None]
    distance = np.abs(length - np.array([0.5, 1.5])).min(1).mean()
    return outcome_of(distance, [model], model.memory_plan if own else None)
