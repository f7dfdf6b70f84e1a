"""Two inputs, two outputs, a loss for each; and a part of the model, frozen."""

import numpy as np

import memcfg as mc
from memcfg import nn

generator = np.random.default_rng(0)
n = 1024
words = generator.integers(0, 40, (n, 10))
facts = generator.normal(size=(n, 4)).astype(np.float32)
kind = (words < 20).mean(1).round().astype(int)  # which half of the words is common
price = facts @ np.array([1.0, -2.0, 0.5, 1.0]) + kind

nn.set_random_seed(0)
read = nn.Input((10,), dtype="int32", name="words")
known = nn.Input((4,), name="facts")
text = nn.Sequential(
    [nn.Input((10,), dtype="int32"), nn.Embedding(40, 8), nn.GRU(16)], name="text"
)
joined = nn.Concatenate()([text(read), known])
hidden = nn.Dense(16, activation="relu")(joined)
model = nn.Model(
    [read, known],
    [
        nn.Dense(1, name="price")(hidden),
        nn.Dense(2, activation="softmax", name="kind")(hidden),
    ],
)


def compile_it(rate):
    model.compile(
        nn.Adam(rate),
        loss={"price": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"price": 0.2, "kind": 1.0},
        metrics={"price": ["mae"], "kind": ["accuracy"]},
    )


compile_it(0.01)
x = {"words": words, "facts": facts}
y = {"price": price, "kind": kind}
history = model.fit(x, y, epochs=12, validation_split=0.25, seed=0, verbose=0).history
print({name: round(values[-1], 3) for name, values in history.items()})
assert history["val_kind_accuracy"][-1] > 0.9

# The text model is a model of its own, with the weights that it got here.
codes = text(words[:3])
assert codes.shape == (3, 16)

# Frozen, it has no gradients and no optimizer state, and no bytes for them.
before, peak = text.get_weights(), model.plan(64).peak_bytes
text.trainable = False
compile_it(0.002)
model.fit(x, y, batch_size=64, seed=1, verbose=0)
assert all(map(np.array_equal, before, text.get_weights()))
print(f"{peak} bytes a step, {model.memory_plan.peak_bytes} with the text frozen")
assert model.memory_plan.peak_bytes < peak
print(mc.config.get_memory_info("CPU:0"))
