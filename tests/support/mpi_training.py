"""A training that several processes, or workers of one, do together."""

from __future__ import annotations

import numpy as np

import memcfg as mc

__all__ = ["train"]


def train(**ranks):
    """Return the losses of epochs and a sum of the weights, to the bit."""
    mc.nn.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    layers = [mc.nn.Dense(64, activation="relu"), mc.nn.Dense(2)]
    model = mc.nn.Sequential([mc.nn.Input((8,)), *layers])
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mc.nn.SGD(0.1), loss)
    mode = {"training_mode": "all_reduce"}
    with mc.parallel.ParallelWrapper(model, **mode, **ranks) as wrapper:
        losses = wrapper.fit(x, y, epochs=2, batch_size=32, verbose=0).history["loss"]
    total = sum(float(np.abs(each).sum()) for each in model.get_weights())
    model.close()
    return [each.hex() for each in [*map(float, losses), total]]
