"""A small U-Net in three dimensions: which voxels of a noisy volume are in a ball.

The score is the part of voxels that are right (Çiçek et al. 2016).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike

CHANCE, WANTED = 0.85, 0.95
SIZE = 12


def volumes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    grid = np.indices((SIZE,) * 3)[None]
    centre = generator.uniform(3, SIZE - 3, (count, 3, 1, 1, 1))
    radius = generator.uniform(2, 4, (count, 1, 1, 1))
    inside = np.square(grid - centre).sum(1) < np.square(radius)
    noise = generator.normal(0, 0.7, inside.shape)
    return (inside + noise)[..., None].astype(np.float32), inside.astype(np.int32)


def train(k: Any, own: bool) -> Outcome:
    x, y = volumes(96, 0)
    layers = k.layers
    start = k.Input((SIZE, SIZE, SIZE, 1))
    fine = layers.Conv3D(8, 3, padding="same", activation="relu")(start)
    coarse = layers.MaxPooling3D(2)(fine)
    coarse = layers.Conv3D(16, 3, padding="same", activation="relu")(coarse)
    coarse = layers.Conv3D(16, 3, padding="same", activation="relu")(coarse)
    wide = layers.Conv3DTranspose(8, 2, strides=2)(coarse)
    joined = layers.Concatenate()([fine, wide])
    joined = layers.Conv3D(8, 3, padding="same", activation="relu")(joined)
    model = k.Model(start, layers.Conv3D(2, 1)(joined))
    start_alike([model])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(k.optimizers.Adam(3e-3), loss)
    model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    x, y = volumes(32, 1)
    right = np.mean(model.predict(x, batch_size=8, verbose=0).argmax(-1) == y)
    return outcome_of(right, [model], model.memory_plan if own else None)
