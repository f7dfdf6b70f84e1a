import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
QUANTILES = [0.1, 0.5, 0.9]


def pinball(y_true, y_pred):
    q = keras.ops.convert_to_tensor(np.array([QUANTILES], "float32"))
    error = y_true - y_pred
    return keras.ops.mean(keras.ops.maximum(q * error, (q - 1) * error), axis=-1)


x = rng.uniform(-1, 1, (600, 1)).astype("float32")
y = (2 * x + rng.normal(size=(600, 1)) * 0.5).astype("float32")
targets = np.repeat(y, 3, axis=1)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.Adam(0.05), pinball)
model.fit(x, targets, batch_size=100, epochs=40, verbose=0)
below = (y < model.predict(x, verbose=0)).mean(axis=0)
np.testing.assert_allclose(below, QUANTILES, atol=0.06)
