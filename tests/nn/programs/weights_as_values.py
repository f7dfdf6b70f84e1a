import keras
import numpy as np

ops = keras.ops


class RunningMean(keras.layers.Layer):
    """Subtracts the mean of all batches so far, and scales."""

    def build(self, input_shape):
        width = (input_shape[-1],)
        self.scale = self.add_weight(shape=width, initializer="ones", name="scale")
        self.total = self.add_weight(shape=width, trainable=False, name="total")
        self.count = self.add_weight(shape=(), trainable=False, name="count")

    def call(self, x):
        self.total.assign_add(ops.mean(x, axis=0))
        self.count.assign_add(1.0)
        return self.scale * (x - self.total / self.count)


x = np.random.default_rng(0).normal(1.0, 1.0, size=(32, 3)).astype("float32")
layer = RunningMean()
model = keras.Sequential([keras.Input((3,)), layer])
layer.total.assign(np.zeros(3))
layer.count.assign(0.0)
model.compile(keras.optimizers.SGD(0.0), "mse")
model.fit(x, x, batch_size=8, epochs=2, verbose=0)

assert float(layer.count) == int(layer.count) == 8
assert layer.count > 7
np.testing.assert_allclose(
    ops.convert_to_numpy(layer.total / layer.count), x.mean(axis=0), rtol=1e-5
)
np.testing.assert_allclose(ops.convert_to_numpy(layer.total.value)[1], layer.total[1])
assert layer.scale.trainable
assert not layer.total.trainable
assert layer.scale.path.split("/")[-1] == layer.scale.name == "scale"
assert layer.scale.ndim == 1
assert tuple(layer.scale.shape) == (3,)
for made, wanted in (
    (2 * layer.scale + 1, 3.0),
    (-layer.scale, -1.0),
    (ops.square(layer.scale * 3), 9.0),
    (abs(layer.scale - 3) ** 2, 4.0),
    (layer.scale[:2], 1.0),
):
    np.testing.assert_allclose(ops.convert_to_numpy(made), wanted)
assert bool(ops.all(layer.scale == np.ones(3, "float32")))
