import keras
import numpy as np


def quantile(y_true, y_pred, q=0.9):
    error = y_true - y_pred
    return keras.ops.mean(keras.ops.maximum(q * error, (q - 1) * error), axis=-1)


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), quantile)
rng = np.random.default_rng(0)
x = rng.random((500, 1))
y = x + rng.normal(0, 0.1, (500, 1))
model.fit(x, y, epochs=15, verbose=0)
above = np.mean(y > model.predict(x, verbose=0))
assert 0.03 < above < 0.2
