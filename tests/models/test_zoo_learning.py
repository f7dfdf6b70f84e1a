"""LeNet-5 learns handwritten digits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import memcfg as mc

nn = mc.nn
EPOCHS, BATCH = 20, 32


@pytest.mark.slow  # test_zoo_bfloat16 has a shorter one in the gate
def test_lenet5_tells_digits_apart():
    digits = load_digits()
    x = (digits.images / 16).astype(np.float32)[..., None]
    y = digits.target
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1400], order[1400:]
    nn.set_random_seed(3)
    inputs = nn.Input((8, 8, 1))
    enlarged = nn.UpSampling2D(4, interpolation="bilinear")(inputs)
    model = nn.Model(inputs, mc.models.lenet5()(enlarged))
    steps = EPOCHS * -(-len(train) // BATCH)
    model.compile(
        nn.Adam(nn.optimizers.schedules.CosineDecay(2e-3, steps)),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x[train], y[train], batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=3)
    _, accuracy = model.evaluate(x[test], y[test], verbose=0)
    model.close()
    assert accuracy >= 0.98
