"""A cell of one's own and a convolutional LSTM forecast what moves.

A dot moves along a ring of pixels and is hidden at times. A cell that forgets slowly
and keeps its weights positive, and an LSTM of convolutions, say where it is next. Every
step of both is planned, so that recomputation keeps them within a limit.
"""

import numpy as np

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
RING, STEPS, BATCH, EPOCHS = 16, 12, 32, 5


def dots(count, seed):
    """Return the pixels at each step, of which some are hidden, and the next place."""
    rng = np.random.default_rng(seed)
    first, speed = rng.integers(0, RING, count), rng.choice([-1, 1], count)
    places = (first[:, None] + speed[:, None] * np.arange(STEPS + 1)) % RING
    seen = rng.random((count, STEPS, 1)) < 0.8
    return np.eye(RING, dtype=np.float32)[places[:, :-1]] * seen, places[:, -1]


class Fading(nn.Layer):
    """A cell: h' = h * decay + x @ kernel, with a decay for each unit."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = self.state_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")
        start = nn.initializers.RandomUniform(0.3, 0.9)
        how = {"constraint": Kept(), "name": "decay"}
        self.decay = self.add_weight((self.units,), start, **how)

    def call(self, x, states):
        h = states[0] * self.decay + x @ self.kernel
        return h, [h]


class Kept(nn.Constraint):
    """Keep what is forgotten at each step between 2 and 95 percent."""

    def __call__(self, w):
        return ops.clip(w, 0.05, 0.98)


def fading(start):
    h = nn.Dense(64, activation="relu")(nn.RNN(Fading(64))(start))
    return nn.Dense(RING)(h)


def convolutional(start):
    h = nn.Reshape((STEPS, RING, 1))(start)
    h = nn.ConvLSTM1D(8, 3, padding="same")(h)
    return nn.Dense(RING)(nn.Flatten()(h))


x, y = dots(768, seed=0)
x_test, y_test = dots(256, seed=1)
for network in (fading, convolutional):
    nn.set_random_seed(0)
    start = nn.Input((STEPS, RING))
    model = nn.Model(start, network(start))
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.01), loss, metrics=["accuracy"])
    graph = model.graph(BATCH)
    whole = mc.plan.share()(graph).peak_bytes
    limit = (mc.plan.sqrt_checkpoint()(graph).peak_bytes // 4096 + 1) * 4096
    mc.config.set_memory_limit("CPU:0", limit)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, seed=0)
    right = model.evaluate(x_test, y_test, batch_size=BATCH, verbose=0)[1]
    print(f"{network.__name__}: {right:.2f} right, {limit >> 10} KiB of {whole >> 10}")
    model.close()
    mc.config.set_memory_limit("CPU:0", None)
    assert limit < whole
    assert right > 0.8
