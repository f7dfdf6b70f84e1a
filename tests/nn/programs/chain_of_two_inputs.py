import keras
import numpy as np


class Scaled(keras.layers.Layer):
    """The sum of two entries, the second of which is halved."""

    def call(self, inputs):
        return inputs["a"] + 0.5 * inputs["b"]


keras.utils.set_random_seed(0)
a = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
b = np.ones((32, 2), "float32")
model = keras.Sequential([keras.layers.Concatenate(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit([a, b], a[:, :1], batch_size=8, epochs=5, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
assert [tuple(w.shape) for w in model.weights] == [(5, 1), (1,)]
kernel, bias = model.get_weights()
wanted = np.concatenate([a, b], axis=1) @ kernel + bias
np.testing.assert_allclose(model.predict([a, b], verbose=0), wanted, atol=1e-5)
loss = model.evaluate([a, b], a[:, :1], verbose=0)
np.testing.assert_allclose(loss, ((wanted - a[:, :1]) ** 2).mean(), rtol=1e-4)

model = keras.Sequential([Scaled(), keras.layers.Dense(2, kernel_initializer="ones")])
entries = {"a": a, "b": np.ones((32, 3), "float32")}
wanted = (a + 0.5).sum(axis=1, keepdims=True).repeat(2, axis=1)
np.testing.assert_allclose(model.predict(entries, verbose=0), wanted, atol=1e-5)
np.testing.assert_allclose(
    keras.ops.convert_to_numpy(model(entries)), wanted, atol=1e-5
)
