import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Highway(keras.layers.Layer):
    """A gate decides how much of the input passes unchanged."""

    def build(self, input_shape):
        self.change = keras.layers.Dense(input_shape[-1], activation="relu")
        self.gate = keras.layers.Dense(
            input_shape[-1], activation="sigmoid", bias_initializer=self.start()
        )

    def start(self):
        return keras.initializers.Constant(-2.0)

    def call(self, x):
        gate = self.gate(x)
        return gate * self.change(x) + (1 - gate) * x


x = rng.normal(size=(200, 6)).astype("float32")
y = np.abs(x).sum(axis=1, keepdims=True)
inputs = keras.Input((6,))
h = inputs
for _ in range(3):
    h = Highway()(h)
model = keras.Model(inputs, keras.layers.Dense(1)(h))
model.compile(keras.optimizers.Adam(0.02), "mse")
history = model.fit(x, y, epochs=25, verbose=0).history["loss"]
assert len(model.trainable_weights) == 3 * 4 + 2
assert history[-1] < 0.1 * history[0]
