import keras
import numpy as np

layers, ops = keras.layers, keras.ops
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
words = rng.integers(0, 6, (200, 9))
words[:, 1::2] = words[:, :-1:2]  # each is said twice


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, width)
        self.norm = layers.LayerNormalization()
        self.inner = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(width)])

    def call(self, x):
        steps = ops.shape(x)[1]
        mask = ops.cast(ops.arange(steps)[:, None] >= ops.arange(steps), "bool")
        h = self.norm(x + self.attention(x, x, attention_mask=mask[None]))
        return h + self.inner(h)


class Words(layers.Layer):
    def __init__(self, steps, count, width):
        super().__init__()
        self.steps = steps
        self.words = layers.Embedding(count, width)
        self.places = layers.Embedding(steps, width)

    def call(self, x):
        return self.words(x) + self.places(ops.arange(0, self.steps, 1))


inputs = keras.Input((8,), dtype="int32")
model = keras.Model(inputs, layers.Dense(6)(Block(16)(Words(8, 6, 16)(inputs))))
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(words[:, :-1], words[:, 1:], epochs=25, verbose=0)
found = model.predict(words[:, :-1], verbose=0)
assert (found.argmax(-1)[:, ::2] == words[:, 1::2]).mean() > 0.95
changed = words[:, :-1].copy()
changed[:, 5:] = 0  # what comes later is not seen
again = model.predict(changed, verbose=0)
np.testing.assert_allclose(found[:, :5], again[:, :5], atol=1e-4)
