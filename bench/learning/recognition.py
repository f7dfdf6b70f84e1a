"""CTC: three digits in a wide image, read without their places (Graves et al. 2006).

The score is the part of images whose digits are all right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, digits, outcome_of, start_alike

CHANCE, WANTED = 0.001, 0.6
WIDE = 36


def lines(
    count: int, seed: int, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (count, 8, 36, 1) of digits at random places, and their classes."""
    images, labels = digits()
    generator = np.random.default_rng(seed)
    chosen = generator.integers(first, last, (count, 3))
    result = np.zeros((count, 8, WIDE, 1), np.float32)
    for row, three in enumerate(chosen):
        place = 0
        for each in three:
            place += generator.integers(0, 4)
            result[row, :, place : place + 8] = images[each]
            place += 8
    return result, labels[chosen] + 1  # class 0 is the blank


def read(scores: np.ndarray) -> list[list[int]]:
    """Return the best class of each step, without repetitions and blanks."""
    result = []
    for best in scores.argmax(-1):
        kept = best[np.insert(np.diff(best) != 0, 0, True)]
        result.append([int(each) for each in kept if each])
    return result


def train(k: Any, own: bool) -> Outcome:
    x, y = lines(2000, 0, 0, 1500)
    layers = k.layers
    start = k.Input((8, WIDE, 1))
    hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(start)
    hidden = layers.MaxPooling2D((2, 2))(hidden)
    hidden = layers.Conv2D(32, 3, padding="same", activation="relu")(hidden)
    columns = layers.Permute((2, 1, 3))(hidden)
    columns = layers.Reshape((WIDE // 2, 4 * 32))(columns)
    columns = layers.Bidirectional(layers.GRU(32, return_sequences=True))(columns)
    model = k.Model(start, layers.Dense(11)(columns))
    start_alike([model])
    model.compile(k.optimizers.Adam(4e-3), k.losses.CTC())
    model.fit(x, y, batch_size=50, epochs=8, shuffle=False, verbose=0)
    x, y = lines(300, 1, 1500, 1797)
    found = read(model.predict(x, verbose=0))
    score = np.mean([a == list(b) for a, b in zip(found, y.tolist(), strict=True)])
    return outcome_of(score, [model], model.memory_plan if own else None)
