"""ConvLSTM: the next image of two dots that move and bounce (Shi et al. 2015).

The score is the squared error beside that of showing the last image again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike

CHANCE, WANTED = 1.0, 0.5
SIZE, STEPS = 12, 6


def films(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    film = np.zeros((count, STEPS + 1, SIZE, SIZE, 1), np.float32)
    rows = np.arange(count)
    for _ in range(2):
        place = generator.integers(0, SIZE, (count, 2))
        speed = generator.choice([-1, 1], (count, 2))
        for step in range(STEPS + 1):
            film[rows, step, place[:, 0], place[:, 1]] = 1
            turns = (place + speed < 0) | (place + speed >= SIZE)
            speed = np.where(turns, -speed, speed)
            place = place + speed
    return film[:, :-1], film[:, -1]


def train(k: Any, own: bool) -> Outcome:
    x, y = films(768, 0)
    start = k.Input((STEPS, SIZE, SIZE, 1))
    hidden = k.layers.ConvLSTM2D(8, 3, padding="same", return_sequences=True)(start)
    hidden = k.layers.ConvLSTM2D(8, 3, padding="same")(hidden)
    end = k.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(hidden)
    model = k.Model(start, end)
    start_alike([model])
    model.compile(k.optimizers.Adam(1e-2), "binary_crossentropy")
    model.fit(x, y, batch_size=32, epochs=6, shuffle=False, verbose=0)
    x, y = films(128, 1)
    error = np.mean(np.square(model.predict(x, verbose=0) - y))
    score = error / np.mean(np.square(x[:, -1] - y))
    return outcome_of(score, [model], model.memory_plan if own else None)
