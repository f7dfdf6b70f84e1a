import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 3)).astype("float32")
y = (x[:, :2] > 0).astype("float32")


class Endpoint(keras.layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, targets, logits):
        count = keras.ops.shape(logits)[0]
        weights = 0.5 * keras.ops.ones((count, 1))
        self.add_loss(self.loss(targets, logits, weights))
        return keras.ops.sigmoid(logits)


inputs = keras.Input((3,), name="inputs")
targets = keras.Input((2,), name="targets")
logits = keras.layers.Dense(2)(inputs)
model = keras.Model([inputs, targets], Endpoint()(targets, logits))
model.compile(keras.optimizers.Adam(0.1))
data = {"inputs": x, "targets": y}
history = model.fit(data, epochs=20, verbose=0).history
assert list(history) == ["loss"]
assert history["loss"][-1] < history["loss"][0] / 2
found = model.predict(data, verbose=0)
assert ((found > 0.5) == y).mean() > 0.95
wanted = keras.losses.BinaryCrossentropy()(y, found)
np.testing.assert_allclose(model.evaluate(data, verbose=0), wanted / 2, rtol=1e-4)
