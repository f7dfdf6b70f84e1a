import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Block(keras.layers.Layer):
    def __init__(self, width, rate=0.0, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization()
        self.first = keras.layers.Dense(2 * width, activation="gelu")
        self.second = keras.layers.Dense(width)
        self.drop = keras.layers.Dropout(rate)

    def call(self, x, training=None):
        h = self.second(self.first(self.norm(x)))
        return x + self.drop(h, training=training)


class Network(keras.Model):
    def __init__(self, depth, width):
        super().__init__()
        self.start = keras.layers.Dense(width)
        self.blocks = [Block(width, 0.05) for _ in range(depth)]
        self.end = keras.layers.Dense(1)

    def call(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x)


x = rng.uniform(-2, 2, (200, 2)).astype("float32")
y = np.sin(x[:, :1]) * x[:, 1:]
model = Network(depth=2, width=12)
model.compile(keras.optimizers.AdamW(0.01), "mse")
history = model.fit(x, y, epochs=25, verbose=0).history["loss"]
assert len(model.trainable_weights) == 2 + 2 * 6 + 2
assert history[-1] < 0.2 * history[0]
