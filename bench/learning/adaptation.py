"""LoRA: a network of five digits learns five others (Hu et al. 2022).

The score is the accuracy on the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, digits, outcome_of, start_alike

CHANCE, WANTED = 0.2, 0.9


def train(k: Any, own: bool) -> Outcome:
    x, y = digits()
    x = x.reshape(-1, 64)
    low = y < 5
    hidden = [k.layers.Dense(128, activation="relu") for _ in range(3)]
    model = k.Sequential([k.Input((64,)), *hidden, k.layers.Dense(5)])
    start_alike([model])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"batch_size": 250, "shuffle": False, "verbose": 0}
    model.compile(k.optimizers.Adam(1e-3), loss)
    model.fit(x[:1500][low[:1500]], y[:1500][low[:1500]], epochs=30, **options)
    first = model.memory_plan if own else None  # of all weights, so the larger one
    generator = np.random.default_rng(0)
    for layer in hidden:
        layer.enable_lora(4)
        drawn = generator.normal(0, 0.1, (layer.kernel.shape[0], 4))
        layer.lora_kernel_a.assign(drawn.astype(np.float32))
    model.compile(k.optimizers.Adam(5e-3), loss)
    high = ~low
    model.fit(x[:1500][high[:1500]], y[:1500][high[:1500]] - 5, epochs=40, **options)
    found = model.predict(x[1500:][high[1500:]], verbose=0).argmax(-1)
    score = np.mean(found == y[1500:][high[1500:]] - 5)
    return outcome_of(score, [model], first)
