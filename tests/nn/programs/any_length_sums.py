import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)


def batch(steps, size=32):
    x = rng.uniform(-1, 1, (size, steps, 1)).astype("float32")
    return x, x.sum(axis=1)


model = keras.Sequential(
    [keras.Input((None, 1)), keras.layers.GRU(16), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.02), "mse")
first = model.test_on_batch(*batch(6))
for _step in range(60):
    for steps in (3, 5, 8):
        model.train_on_batch(*batch(steps))
assert model.input_shape == (None, None, 1)
assert model.test_on_batch(*batch(6)) < 0.1 * first
assert model.test_on_batch(*batch(10)) < first
