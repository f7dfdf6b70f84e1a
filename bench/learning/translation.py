"""A Transformer with Noam's learning rate: the reverse of a sequence, plus one.

The score is the part of tokens that are right when each follows from the right ones
before it (Vaswani et al. 2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike

CHANCE, WANTED = 0.1, 0.9
WORDS, LENGTH, WIDTH = 10, 8, 32
START = WORDS


def sentences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed).integers(0, WORDS, (count, LENGTH))
    target = (source[:, ::-1] + 1) % WORDS
    begun = np.hstack([np.full((count, 1), START), target[:, :-1]])
    return source.astype(np.int32), begun.astype(np.int32), target.astype(np.int32)


def noam(k: Any, width: int, warmup: int) -> Any:
    class Noam(k.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            step = k.ops.cast(step, "float32") + 1.0
            rising = step * warmup**-1.5
            return width**-0.5 * k.ops.minimum(k.ops.rsqrt(step), rising)

        def get_config(self) -> dict[str, Any]:
            return {}

    return Noam()


def train(k: Any, own: bool) -> Outcome:
    layers = k.layers
    positions = np.arange(LENGTH, dtype=np.int32)

    def embedded(tokens: Any, where: Any) -> Any:
        words = layers.Embedding(WORDS + 1, WIDTH)(tokens)
        return layers.Add()([words, layers.Embedding(LENGTH, WIDTH)(where)])

    def attended(x: Any, to: Any, causal: bool = False) -> Any:
        attention = layers.MultiHeadAttention(4, WIDTH // 4)
        x = layers.Add()([x, attention(x, to, use_causal_mask=causal)])
        return layers.LayerNormalization()(x)

    def fed_forward(x: Any) -> Any:
        hidden = layers.Dense(2 * WIDTH, activation="relu")(x)
        x = layers.Add()([x, layers.Dense(WIDTH)(hidden)])
        return layers.LayerNormalization()(x)

    source, begun, where = (k.Input((LENGTH,), dtype="int32") for _ in range(3))
    memory = embedded(source, where)
    memory = fed_forward(attended(memory, memory))
    x = embedded(begun, where)
    x = attended(x, x, causal=True)
    x = fed_forward(attended(x, memory))
    model = k.Model([source, begun, where], layers.Dense(WORDS)(x))
    start_alike([model])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = noam(k, WIDTH, 100)
    model.compile(k.optimizers.Adam(rate, beta_2=0.98), loss)
    xs, ys, targets = sentences(4096, 0)
    given = [xs, ys, np.tile(positions, (len(xs), 1))]
    model.fit(given, targets, batch_size=64, epochs=6, shuffle=False, verbose=0)
    xs, ys, targets = sentences(512, 1)
    given = [xs, ys, np.tile(positions, (len(xs), 1))]
    right = np.mean(model.predict(given, verbose=0).argmax(-1) == targets)
    return outcome_of(right, [model], model.memory_plan if own else None)
