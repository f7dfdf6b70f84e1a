import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Direction(keras.layers.Layer):
    """The direction that a matrix stretches most, by repeated products."""

    def call(self, matrices):
        def step(_, vector):
            vector = keras.ops.matmul(matrices, vector)
            return vector / keras.ops.norm(vector, axis=1, keepdims=True)

        start = keras.ops.ones_like(matrices[:, :, :1])
        return keras.ops.fori_loop(0, 30, step, start)


a = rng.normal(size=(10, 4, 4)).astype("float32")
a = a @ a.transpose(0, 2, 1)
inputs = keras.Input((4, 4))
model = keras.Model(inputs, Direction()(inputs))
found = model.predict(a, verbose=0)[:, :, 0]
values, vectors = np.linalg.eigh(a)
clear = values[:, -1] > 1.5 * values[:, -2]
same = np.abs((found * vectors[:, :, -1]).sum(axis=1))
assert clear.sum() > 3
np.testing.assert_allclose(same[clear], 1, atol=1e-3)
