import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


class Halved(keras.layers.Layer):
    """Divide by two as often as it says."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def call(self, x):
        _, x = keras.ops.while_loop(
            lambda step, _: step < self.times,
            lambda step, x: (step + 1, x / 2),
            (0, x),
        )
        return keras.ops.cond(self.times > 2, lambda: -x, lambda: x)


x = rng.normal(size=(5, 4)).astype("float32")
for times, sign in ((0, 1), (2, 1), (5, -1)):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Halved(times)(inputs))
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, sign * x / 2**times, rtol=1e-5)
