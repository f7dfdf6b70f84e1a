"""A training that several processes, or workers of one, do together."""

from __future__ import annotations

import numpy as np

import memcfg as mc

__all__ = ["train"]


def train(mode="all_reduce", **ranks):
    """Return the losses of epochs and a sum of the weights, to the bit.

    The last value is how many gradients were not 0 when they were encoded.
    """
    mc.nn.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    layers = [mc.nn.Dense(64, activation="relu"), mc.nn.Dense(2)]
    model = mc.nn.Sequential([mc.nn.Input((8,)), *layers])
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mc.nn.SGD(0.1), loss)
    with mc.parallel.ParallelWrapper(model, training_mode=mode, **ranks) as wrapper:
        losses = wrapper.fit(x, y, epochs=9, batch_size=32, verbose=0).history["loss"]
        entries = wrapper.encoded_totals.entries
    total = sum(float(np.abs(each).sum()) for each in model.get_weights())
    model.close()
    return [*(each.hex() for each in [*map(float, losses), total]), entries]
