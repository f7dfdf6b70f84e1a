import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Pooled(keras.layers.Layer):
    """A mean of steps, weighed by scores that are learnt."""

    def build(self, input_shape):
        self.query = self.add_weight(shape=(input_shape[-1], 1), name="query")

    def call(self, x, return_weights=False):
        weights = keras.ops.softmax(keras.ops.matmul(x, self.query), axis=1)
        pooled = keras.ops.sum(weights * x, axis=1)
        return (pooled, weights) if return_weights else pooled


x = rng.normal(size=(200, 5, 3)).astype("float32")
marked = rng.integers(0, 5, 200)
x[np.arange(200), marked, 0] = 4.0  # the step that counts
y = x[np.arange(200), marked, 1:2]
inputs = keras.Input((5, 3))
pooled, weights = Pooled()(inputs, return_weights=True)
model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, epochs=40, verbose=0).history["loss"]
assert history[-1] < 0.2 * history[0]
found = keras.Model(inputs, weights).predict(x, verbose=0)[..., 0]
np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
assert (found.argmax(axis=1) == marked).mean() > 0.8
