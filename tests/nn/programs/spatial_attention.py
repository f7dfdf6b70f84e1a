import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Where(keras.layers.Layer):
    """Weigh the places of an image by a map that a convolution makes of it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.conv = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")

    def call(self, x):
        mean = keras.ops.mean(x, axis=-1, keepdims=True)
        most = keras.ops.max(x, axis=-1, keepdims=True)
        return x * self.conv(keras.ops.concatenate([mean, most], axis=-1))


x = rng.random((64, 6, 6, 2)).astype("float32")
y = (x[:, 2:4, 2:4].mean(axis=(1, 2, 3)) > 0.5).astype("float32")
inputs = keras.Input((6, 6, 2))
h = keras.layers.Flatten()(Where(name="where")(inputs))
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(h))
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=40, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] > 0.9
weighed = keras.Model(inputs, model.get_layer("where").output).predict(x, verbose=0)
assert (weighed <= x + 1e-6).all()
