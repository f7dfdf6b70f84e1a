import keras
import numpy as np

keras.utils.set_random_seed(0)
t = np.arange(400) * 0.1
wave = np.sin(t)
x = np.stack([wave[i : i + 20] for i in range(300)])[..., None]
y = np.array([wave[i + 20] for i in range(300)])
model = keras.Sequential(
    [keras.Input((20, 1)), keras.layers.GRU(12), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, y, epochs=8, verbose=0)
assert model.evaluate(x, y, verbose=0) < 0.05
