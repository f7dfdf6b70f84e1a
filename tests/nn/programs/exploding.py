import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
y = 1e3 * x.sum(axis=1)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e6), "mse")
history = model.fit(
    x, y, epochs=30, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0
)
assert len(history.epoch) < 30
assert not np.isfinite(history.history["loss"][-1])

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, clipvalue=10.0), "mse")
history = model.fit(
    x, y, epochs=30, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0
)
assert len(history.epoch) == 30
assert history.history["loss"][-1] < history.history["loss"][0]
